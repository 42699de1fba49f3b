#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "dovetail/comm/gradient_reducer.h"
#include "dovetail/data/rows/row_batch.h"
#include "dovetail/embedding/ranks/distributed.h"
#include "dovetail/models/recommender.h"
#include "dovetail/train/loop/step_outcome.h"
#include "dovetail/train/memory/planned_step.h"
#include "dovetail/train/optimizer/optimizer.h"
#include "dovetail/train/tables/lookups.h"

namespace dovetail {

/// Rows of a step, counted from 0, and what they look up, on its way to the tables.
struct StepRows {
  int64_t step;
  int64_t rows;  ///< of all ranks
  int64_t micro_batch;
  RowBatch batch;
  embedding::Jagged ids;
  embedding::TableStep tables;
};

/// One step of a recommender over all ranks, without the update of its tables: forward and backward
/// of the micro-batches, reduction, guard, update of the dense part. While a micro-batch is in the
/// dense part, the rows of the next one are on their way. The dense part takes `grain` samples at a
/// time, so that its sums have the same bits however the batch is cut into micro-batches.
///
/// A plan is of the dense part: a micro-batch's rows come out of one operation, pooled, and their
/// gradient goes into another. What the tables take, rows on their way and pooled rows and
/// gradients among it, is theirs and not the budget's.
class RecommenderStep {
 public:
  struct Options {
    int64_t grain = 1;
    double clip = 0;  ///< of the dense part's gradient; 0: none
    int64_t bucket_bytes = 4 << 20;
    std::vector<double> task_weights = {};  ///< as task_scales
  };
  /// `lookups` must outlive it; `optimizer` is bound to `model` already.
  RecommenderStep(std::shared_ptr<Recommender> model, const RecommenderLookups& lookups,
                  Optimizer& optimizer, std::shared_ptr<Group> group, Options options);
  RecommenderStep(const RecommenderStep&) = delete;  // a recorded step refers to it
  RecommenderStep& operator=(const RecommenderStep&) = delete;

  /// From the next step on by a memory plan. Once; UserError for what cannot be planned.
  void plan_memory(PlannedStep::Options options);
  /// Null without one.
  const PlannedStep* memory_plan() const { return planned_ ? &*planned_ : nullptr; }

  /// Starts the lookups of the step after, while the rows of this one are on their way; null if
  /// there is none.
  using StartNext = std::function<embedding::TableStep*()>;

  /// All ranks together. Where it is skipped nothing was updated; else `rows.tables` waits for its
  /// update.
  StepOutcome run(StepRows& rows, embedding::DistributedTables& tables, const StartNext& start_next,
                  double lr, bool want_stop);
  /// Forward and backward alone.
  void pass(StepRows& rows, embedding::DistributedTables& tables, const StartNext& start_next);

  /// Seconds that forward and backward of the dense part of the last step's micro-batches took.
  double compute_s() const { return now_.clock.seconds; }

  /// The reduced gradient sums of the last step (not divided by samples).
  const GradientReducer& gradients() const { return reducer_; }

 private:
  /// What a step works on: a recorded step reads and writes it anew each time.
  struct Now {
    StepRows* rows = nullptr;
    embedding::DistributedTables* tables = nullptr;
    const StartNext* start_next = nullptr;
    embedding::TableStep* next = nullptr;
    at::Tensor gradient;  ///< of the micro-batch's pooled rows, for the mean over the whole batch
    double lr = 0;
    bool want_stop = false;
    StepOutcome outcome;
    StepClock clock;
  };
  /// float64 scalars; undefined without samples, `auxiliary` also where there is none.
  struct Losses {
    at::Tensor sum, auxiliary;
  };

  PlannedStep::Inputs inputs_of(const StepRows& rows);
  void work(const std::vector<at::Tensor>& inputs);
  Losses add_gradients(const std::vector<at::Tensor>& inputs);
  at::Tensor look_up(int64_t micro_batch);
  /// Forward and backward of a micro-batch, whose samples are those from `first` on.
  void run_dense(const std::vector<at::Tensor>& inputs, int64_t first, const at::Tensor& pooled,
                 bool last, Losses& losses);
  void send_gradient(int64_t micro_batch);
  StepOutcome judge(double loss_sum, double auxiliary_sum, double squares) const;

  std::shared_ptr<Recommender> model_;
  const RecommenderLookups& lookups_;
  Optimizer& optimizer_;
  std::shared_ptr<Group> group_;
  Options options_;
  GradientReducer reducer_;
  Now now_;
  at::Tensor judged_;  ///< (1): what the operations that read and write `now_` change
  std::optional<PlannedStep> planned_;
};

}  // namespace dovetail
