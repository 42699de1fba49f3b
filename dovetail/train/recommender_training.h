#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/data/row_loader.h"
#include "dovetail/embedding/distributed.h"
#include "dovetail/models/recommender.h"
#include "dovetail/train/loop.h"
#include "dovetail/train/optimizer.h"
#include "dovetail/train/recommender_lookups.h"
#include "dovetail/train/recommender_tuning.h"

namespace dovetail {

/// A run with its recommender, tables, optimizers and rows in memory.
///
/// A step is synchronous: all rows of its batch are looked up before any is updated. Its gradients are those of the
/// mean loss of the batch (task_scales says what that is for several tasks); train.clip is of the dense part's. Tables
/// are spread over the ranks, the dense part is on each. While a micro-batch is in the dense part, the rows of the next
/// one are on their way. The dense part takes recommender.grain samples at a time, so that its sums have the same bits
/// however the batch is cut into micro-batches.
class RecommenderTraining : public TrainingLoop {
 public:
  /// `checkpoint` (rank 0's; null: a new run) is restored. `folder` is null on other ranks than 0.
  RecommenderTraining(const ResolvedRun& run, std::shared_ptr<Group> group, RunFolder* folder, bool quiet,
                      RunState state, const StoredCheckpoint* checkpoint);

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

  /// Rows of a step, counted from 0, and what they look up, on its way to the tables.
  struct StepIds {
    int64_t step;
    int64_t rows;  ///< of all ranks
    RowBatch batch;
    embedding::Jagged ids;
    embedding::TableStep tables;
  };
  /// Sums over the samples of this rank.
  struct Losses {
    double loss = 0, auxiliary = 0;
  };

  StepIds start_lookups(int64_t step);
  StepIds take_step(int64_t step);
  /// Forward and backward, with the start of the next step in between unless this one is the last.
  Losses run_batch(StepIds& now, bool last);
  /// The ids that a sample of this data has, of each feature.
  void count_ids();
  embedding::EmbeddingPlan plan_for(int64_t groups) const;
  void build_tables(const TableSizes& sizes);
  /// What the config leaves open, by steps on tables that are thrown away; `record` stays null if it leaves nothing.
  TableSizes choose_sizes(nlohmann::ordered_json& record);
  /// Seconds of one of some steps with the tables that are built, over all ranks.
  double time_steps(int64_t micro_batch);
  void restore_from(const StoredCheckpoint* checkpoint);
  /// Forward and backward of samples [first, first + pooled.size(0)) of the rank's batch, whose losses are added to
  /// `losses`: the gradient of `pooled` for the mean over the whole batch.
  at::Tensor run_dense(const StepIds& step, int64_t first, const at::Tensor& pooled, const at::Tensor& scales,
                       bool last, Losses& losses);
  /// The length of the run, where its days decide it.
  void count_steps();
  /// How the model ranks rows [0, rows), of which `read(begin, end)` gives a part.
  Validation validate_rows(int64_t rows, const std::function<RowBatch(int64_t begin, int64_t end)>& read);
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
  std::optional<GradientReducer> reducer_;
  std::optional<RowLoader> loader_;
  embedding::HashedCounters keys_before_;                 ///< of all ranks, up to the last line of tables.jsonl
  embedding::TierCounters tiers_before_;                  ///< of this rank, up to the last step
  std::optional<StepIds> ahead_;                          ///< of the next step
  std::vector<std::vector<RankingMetrics>> validations_;  ///< of each task, of this process
};

}  // namespace dovetail
