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
#include "dovetail/train/embedding_tables/lookups.h"
#include "dovetail/train/loop/loop.h"
#include "dovetail/train/memory/plan_log.h"
#include "dovetail/train/optimizer/optimizer.h"
#include "dovetail/train/recommender/step.h"
#include "dovetail/train/recommender/tuning.h"

namespace dovetail::train {

/// Training of a recommender: the run's model, tables, optimizers and rows in memory.
///
/// Steps are synchronous: all rows of a batch are looked up before any row is updated. Gradients
/// belong to the mean loss of the batch (task_scales defines it for several tasks). The limit
/// train.clip applies to the dense part's gradient only. Tables are spread over the ranks; each
/// rank has the whole dense part (RecommenderStep).
class RecommenderTraining : public TrainingLoop {
 public:
  /// Restores rank 0's `checkpoint`; null: a new run. Ranks other than 0 pass null for `checkpoint`
  /// and `folder`.
  RecommenderTraining(const ResolvedRun& run, std::shared_ptr<comm::Group> group, RunFolder* folder,
                      bool quiet, RunState state, const io::StoredCheckpoint* checkpoint);

  std::string data_summary() const override { return loader_->summary(); }
  void finish(const RunFolder& folder, bool quiet) override;

 private:
  StepOutcome train_step(int64_t number, double lr, bool want_stop, StepTimings& timings) override;
  void report_step() override;
  std::optional<Validation> evaluate() override;
  /// Validates on the rows of a day that begins with this step, before training on them. Returns
  /// nullopt on all other steps, for the first day and without rows.day.
  std::optional<Validation> evaluate_before(int64_t number) override;
  int64_t updates() const override { return optimizer_->updates(); }
  std::map<std::string, at::Tensor> checkpoint_tensors() override;
  void stream_tensors(io::CheckpointKind kind, io::StreamedTensors* to) override;
  nlohmann::json checkpoint_state() const override;

  StepRows start_lookups(int64_t step);
  StepRows take_step(int64_t step);
  /// Returns a function that starts the lookups of step + 1, unless `last`.
  RecommenderStep::StartNext start_after(int64_t step, bool last);
  /// Sets ids_per_sample_: mean number of ids per sample, for each lookup.
  void count_ids();
  embedding::TablePlacement plan_for(int64_t groups) const;
  void build_tables(const TableSizes& sizes);
  /// Chooses the sizes that the config leaves open, by timing steps on temporary tables. `record`
  /// stays null if nothing had to be measured.
  TableSizes choose_sizes(nlohmann::ordered_json& record);
  /// Returns the seconds per step, from a few steps with the current tables. It is the mean over
  /// ranks.
  double time_steps(int64_t micro_batch);
  void restore_from(const io::StoredCheckpoint* checkpoint);
  /// Checks the run's length against its days; sets it if train.steps = "pass".
  void count_steps();
  /// Measures how well the model ranks rows [0, rows). `read(begin, end)` returns a range of them.
  Validation validate_rows(int64_t rows,
                           const std::function<data::RowBatch(int64_t begin, int64_t end)>& read);
  void warn_of_rankings(const Validation& found);

  std::shared_ptr<models::Recommender> model_;
  std::optional<RecommenderLookups> lookups_;
  std::vector<double> ids_per_sample_;
  double resident_before_;  ///< resident bytes at the beginning of construction
  std::shared_ptr<comm::Group> tables_group_;
  TableSizes sizes_;
  int64_t timed_step_ = 0;  ///< next step that time_steps will run
  std::optional<embedding::DistributedTables> tables_;
  std::optional<Optimizer> optimizer_;
  std::optional<RecommenderStep> step_;
  std::optional<data::RowLoader> loader_;
  /// Sums over all ranks, up to the last line of tables.jsonl.
  embedding::HashedCounters keys_before_;
  /// Counters of this rank, up to the last step.
  embedding::TierCounters tiers_before_;
  std::optional<StepRows> ahead_;  ///< lookups of the next step, if started
  /// Metrics of all validations in this process, by task.
  std::vector<std::vector<RankingMetrics>> validations_;
  MemoryPlanLog memory_plan_log_;
};

}  // namespace dovetail::train
