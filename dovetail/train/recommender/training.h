#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_loader.h"
#include "dovetail/embedding/ranks/distributed.h"
#include "dovetail/models/recommender.h"
#include "dovetail/train/loop/loop.h"
#include "dovetail/train/memory/plan_log.h"
#include "dovetail/train/optimizer/optimizer.h"
#include "dovetail/train/recommender/step.h"
#include "dovetail/train/recommender/tuning.h"
#include "dovetail/train/tables/lookups.h"

namespace dovetail {

/// A run with its recommender, tables, optimizers and rows in memory.
///
/// A step is synchronous: all rows of its batch are looked up before any is updated. Its gradients
/// are those of the mean loss of the batch (task_scales says what that is for several tasks);
/// train.clip is of the dense part's. Tables are spread over the ranks, the dense part is on each
/// (RecommenderStep).
class RecommenderTraining : public TrainingLoop {
 public:
  /// `checkpoint` (rank 0's; null: a new run) is restored. `folder` is null on other ranks than 0.
  RecommenderTraining(const ResolvedRun& run, std::shared_ptr<Group> group, RunFolder* folder,
                      bool quiet, RunState state, const StoredCheckpoint* checkpoint);

  std::string data_summary() const override { return loader_->summary(); }
  void finish(const RunFolder& folder, bool quiet) override;

 private:
  StepOutcome train_step(int64_t number, double lr, bool want_stop, StepTimings& timings) override;
  void report_step() override;
  std::optional<Validation> evaluate() override;
  /// Of a run by days the rows of the day that begins with the step, but the first.
  std::optional<Validation> evaluate_before(int64_t number) override;
  int64_t updates() const override { return optimizer_->updates(); }
  std::map<std::string, at::Tensor> checkpoint_tensors() override;
  void stream_tensors(CheckpointKind kind, StreamedTensors* to) override;
  nlohmann::json checkpoint_state() const override;

  StepRows start_lookups(int64_t step);
  StepRows take_step(int64_t step);
  /// Starts the step behind `step`, unless that is the last.
  RecommenderStep::StartNext start_after(int64_t step, bool last);
  /// The ids that a sample of this data has, of each feature.
  void count_ids();
  embedding::EmbeddingPlan plan_for(int64_t groups) const;
  void build_tables(const TableSizes& sizes);
  /// What the config leaves open, by steps on tables that are thrown away; `record` stays null if
  /// it leaves nothing.
  TableSizes choose_sizes(nlohmann::ordered_json& record);
  /// Seconds of one of some steps with the tables that are built, over all ranks.
  double time_steps(int64_t micro_batch);
  void restore_from(const StoredCheckpoint* checkpoint);
  /// The length of the run, where its days decide it.
  void count_steps();
  /// How the model ranks rows [0, rows), of which `read(begin, end)` gives a part.
  Validation validate_rows(int64_t rows,
                           const std::function<RowBatch(int64_t begin, int64_t end)>& read);
  void warn_of_rankings(const Validation& found);

  std::shared_ptr<Recommender> model_;
  std::optional<RecommenderLookups> lookups_;
  std::vector<double> ids_per_sample_;
  double resident_before_;  ///< bytes, at the beginning of construction
  std::shared_ptr<Group> tables_group_;
  TableSizes sizes_;
  int64_t timed_step_ = 0;  ///< where time_steps goes on
  std::optional<embedding::DistributedTables> tables_;
  std::optional<Optimizer> optimizer_;
  std::optional<RecommenderStep> step_;
  std::optional<RowLoader> loader_;
  embedding::HashedCounters keys_before_;  ///< of all ranks, up to the last line of tables.jsonl
  embedding::TierCounters tiers_before_;   ///< of this rank, up to the last step
  std::optional<StepRows> ahead_;          ///< of the next step
  std::vector<std::vector<RankingMetrics>> validations_;  ///< of each task, of this process
  MemoryPlanLog memory_plan_log_;
};

}  // namespace dovetail
