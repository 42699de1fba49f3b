#pragma once

#include <filesystem>
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
#include "dovetail/train/loop/graph_report.h"
#include "dovetail/train/loop/loop.h"
#include "dovetail/train/optimizer/optimizer.h"
#include "dovetail/train/recommender/step.h"
#include "dovetail/train/recommender/tuning.h"
#include "dovetail/train/recommender/warm_start.h"

namespace dovetail::train {

/// Training of a recommender, with its model, tables, optimizers and rows in memory. The dense part
/// is the model without its embedding tables.
///
/// Steps are synchronous: all rows of a batch are looked up before any table row is updated.
/// Gradients belong to the mean loss of the batch (task_scales defines it for several tasks). The
/// limit train.clip applies to the dense part's gradient only. Tables are spread over the ranks;
/// each rank has the whole dense part (RecommenderStep).
class RecommenderTraining : public TrainingLoop {
 public:
  /// Makes model and tables. `state` is the RunState of the run's checkpoint, or a new one.
  /// `checkpoint` is that checkpoint, or for a new run the checkpoint that run.start_from names. It
  /// is null if there is neither. Ranks other than 0 pass null for `checkpoint` and `folder`.
  RecommenderTraining(const ResolvedRun& run, std::shared_ptr<comm::Group> group, RunFolder* folder,
                      bool quiet, RunState state, const io::StoredCheckpoint* checkpoint);

  std::string data_summary() const override { return loader_->summary(); }
  void finish(const RunFolder& folder, bool quiet) override;

 private:
  StepOutcome train_step(int64_t number, double lr, bool want_stop, StepTimings& timings) override;
  void report_step() override;
  plan::PlannedStep* memory_plan() override { return step_->memory_plan(); }
  std::optional<Validation> evaluate() override;
  /// Measures the model on the rows of a day if `number` is the first step that trains on them.
  /// Returns nullopt on all other steps and without rows.day. Also returns it for the first day,
  /// unless the run began from another run.
  std::optional<Validation> evaluate_before(int64_t number) override;
  int64_t updates() const override { return optimizer_->updates(); }
  std::map<std::string, at::Tensor> checkpoint_tensors() override;
  void stream_tensors(io::CheckpointKind kind, io::StreamedTensors* to) override;
  nlohmann::json checkpoint_state() const override;

  /// Reads this rank's rows of `step`, counted from 0, and starts the lookups of their ids.
  StepRows start_lookups(int64_t step);
  /// Returns `ahead_` if it has the rows of `step`, otherwise start_lookups(step).
  StepRows take_step(int64_t step);
  /// Returns a function that starts the lookups of step + 1, stores them in `ahead_` and returns a
  /// pointer to them. If `last`, the function only returns null.
  RecommenderStep::StartNext start_after(int64_t step, bool last);
  /// Sets `samples_`, `ids_per_sample_` and `distinct_rows_` from the rows of the run's first step.
  void count_ids();
  /// Returns the placement of tables on ranks if they are divided into `groups` groups
  /// (embedding.groups).
  embedding::TablePlacement plan_for(int64_t groups) const;
  /// Replaces `tables_` by new tables with these sizes.
  void build_tables(const TableSizes& sizes);
  /// Returns the sizes in the config. Sizes that are "auto" are chosen by timing steps on temporary
  /// tables. `record` becomes the result of sizes_json; it stays null if no step was timed.
  TableSizes choose_sizes(nlohmann::ordered_json& record);
  /// Runs a few steps on the current tables with this micro-batch size. Returns the seconds per
  /// step, as a mean over ranks.
  double time_steps(int64_t micro_batch);
  /// Returns true if the run begins in this process, from another run (run.start_from).
  bool starts_from_another() const { return !resumed() && !config().run.start_from.empty(); }
  /// Returns the folder of the files with the rows that are not in `sizes_.memory_bytes`, for
  /// tables with this placement. Empty: these rows are in RAM.
  std::filesystem::path slow_folder(const embedding::PackSpec& spec,
                                    const embedding::TablePlacement& plan) const;
  /// Says where rows, ids and their counts are, if the rows are on a GPU. Empty for a run on the
  /// CPU.
  std::vector<std::string> gpu_lines() const;
  /// Writes and logs the placement of tables. `chosen` is the record of choose_sizes.
  void write_plan(const RunFolder& folder, bool quiet, const nlohmann::ordered_json& chosen);
  /// Measures the model before its first step, and writes start.json. All ranks call it together.
  /// `folder` is null except on rank 0.
  void report_start(const WarmStart& start, const RunFolder* folder);
  /// Logs the ranking of each task on rank 0. `when` says what was measured.
  void say_figures(const std::string& when, const Validation& found);
  /// Restores the dense part and the tables of all ranks from rank 0's checkpoint.
  void restore_from(const io::StoredCheckpoint* checkpoint);
  /// If train.steps = "pass", sets the number of steps. Throws UserError if rows have days
  /// (rows.day) and the run has more steps than these days.
  void count_steps();
  /// Measures loss and ranking of the model on the `rows` rows of a validation split or of a day.
  /// `read(begin, end)` returns rows [begin, end) of them.
  Validation validate_rows(int64_t rows,
                           const std::function<data::RowBatch(int64_t begin, int64_t end)>& read);
  /// Adds `found` to `validations_`, and logs ranking_warnings for each task.
  void warn_of_rankings(const Validation& found);

  std::shared_ptr<models::Recommender> model_;
  std::optional<RecommenderLookups> lookups_;
  double samples_ = 0;                  ///< samples of a batch
  std::vector<double> ids_per_sample_;  ///< mean number of ids per sample, for each lookup
  /// Distinct ids of a step's batch in each table, summed over the ranks.
  std::vector<double> distinct_rows_;
  /// Bytes before the model was made: resident memory of the process, or allocated memory of its
  /// GPU.
  double memory_before_;
  std::shared_ptr<comm::Group> tables_group_;  ///< all ranks; used by `tables_` only
  TableSizes sizes_;                           ///< sizes of the current tables and micro-batches
  int64_t timed_step_ = 0;                     ///< next step that time_steps will run
  std::filesystem::path slow_folder_;          ///< slow_folder of the current tables
  std::optional<embedding::DistributedTables> tables_;
  std::optional<Optimizer> optimizer_;
  std::optional<RecommenderStep> step_;
  GraphReport graph_report_;
  std::optional<data::RowLoader> loader_;
  /// Counters of hashed tables (without a fixed vocabulary) at the last line of tables.jsonl,
  /// summed over ranks.
  embedding::HashedCounters keys_before_;
  /// Counters of this rank's accesses to rows in memory and on disk, up to the last step.
  embedding::TierCounters tiers_before_;
  std::optional<StepRows> ahead_;  ///< rows of the next step, if their lookups were started
  /// Metrics of all validations in this process, for each task.
  std::vector<std::vector<RankingMetrics>> validations_;
};

}  // namespace dovetail::train
