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
#include "dovetail/train/embedding_tables/lookups.h"
#include "dovetail/train/loop/step_outcome.h"
#include "dovetail/train/memory/planned_step.h"
#include "dovetail/train/optimizer/optimizer.h"

namespace dovetail::train {

/// Rows of one step, their ids, and their lookups in progress. `step` counts from 0.
struct StepRows {
  int64_t step;
  int64_t rows;  ///< rows of all ranks
  int64_t micro_batch;
  data::RowBatch batch;
  embedding::Jagged ids;
  embedding::TableStep tables;
};

/// One step of a recommender over all ranks, except the update of its tables. It runs forward and
/// backward of the micro-batches and reduces the gradients. Then it updates the dense part, unless
/// loss or gradient is not finite. While a micro-batch is in the dense part, the rows of the next
/// one are in transit between ranks. The dense part takes `grain` samples at a time. So its sums
/// have the same bits for any micro-batch size.
///
/// A memory plan covers the dense part only. Pooled rows of a micro-batch are the result of one
/// operation, and their gradient is the input of another. Memory of the tables does not count
/// towards the budget. This includes rows in transit, pooled rows and their gradients.
class RecommenderStep {
 public:
  struct Options {
    int64_t grain = 1;
    double clip = 0;  ///< maximum norm of the dense part's gradient; 0: no clipping
    int64_t bucket_bytes = 4 << 20;
    std::vector<double> task_weights = {};  ///< weights for task_scales
  };
  /// `lookups` must outlive this object. `optimizer` must already be bound to `model`.
  RecommenderStep(std::shared_ptr<models::Recommender> model, const RecommenderLookups& lookups,
                  Optimizer& optimizer, std::shared_ptr<comm::Group> group, Options options);
  RecommenderStep(const RecommenderStep&) = delete;  // recorded steps keep a pointer to this object
  RecommenderStep& operator=(const RecommenderStep&) = delete;

  /// Runs all further steps by a memory plan. Call it once. Throws UserError if planning is
  /// impossible.
  void plan_memory(PlannedStep::Options options);
  /// Returns the memory plan, or null if plan_memory was not called.
  const PlannedStep* memory_plan() const { return planned_ ? &*planned_ : nullptr; }

  /// Starts the lookups of the next step while rows of the current step are in transit. Returns
  /// null if there is no next step.
  using StartNext = std::function<embedding::TableStep*()>;

  /// Runs one step; all ranks call this together. If the step is skipped, nothing was updated.
  /// Otherwise the caller must still update the tables with `rows.tables`.
  StepOutcome run(StepRows& rows, embedding::DistributedTables& tables, const StartNext& start_next,
                  double lr, bool want_stop);
  /// Runs only forward, backward and gradient reduction.
  void pass(StepRows& rows, embedding::DistributedTables& tables, const StartNext& start_next);

  /// Returns the seconds of forward and backward of the dense part, over the last step's
  /// micro-batches.
  double compute_s() const { return now_.clock.seconds; }

  /// Returns the reduced gradient sums of the last step, not divided by the number of samples.
  const comm::GradientReducer& gradients() const { return reducer_; }

 private:
  /// State of the current step. Recorded operations read and write it in each replay.
  struct Now {
    StepRows* rows = nullptr;
    embedding::DistributedTables* tables = nullptr;
    const StartNext* start_next = nullptr;
    embedding::TableStep* next = nullptr;
    /// Gradient of the micro-batch's pooled rows, divided by the rows of the whole batch.
    at::Tensor gradient;
    double lr = 0;
    bool want_stop = false;
    StepOutcome outcome;
    StepClock clock;
  };
  /// Loss sums, float64 scalars. Both are undefined without samples. `auxiliary` is also undefined
  /// if the model has no auxiliary loss.
  struct Losses {
    at::Tensor sum, auxiliary;
  };

  PlannedStep::Inputs inputs_of(const StepRows& rows);
  void work(const std::vector<at::Tensor>& inputs);
  Losses add_gradients(const std::vector<at::Tensor>& inputs);
  at::Tensor look_up(int64_t micro_batch);
  /// Runs forward and backward of a micro-batch, whose first sample has index `first`.
  void run_dense(const std::vector<at::Tensor>& inputs, int64_t first, const at::Tensor& pooled,
                 bool last, Losses& losses);
  void send_gradient(int64_t micro_batch);
  StepOutcome judge(double loss_sum, double auxiliary_sum, double squares) const;

  std::shared_ptr<models::Recommender> model_;
  const RecommenderLookups& lookups_;
  Optimizer& optimizer_;
  std::shared_ptr<comm::Group> group_;
  Options options_;
  comm::GradientReducer reducer_;
  Now now_;
  /// Tensor of shape (1) that represents `now_` in a recorded step, where only changes of tensors
  /// are visible.
  at::Tensor judged_;
  std::optional<PlannedStep> planned_;
};

}  // namespace dovetail::train
