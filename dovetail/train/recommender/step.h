#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/comm/gradient_reducer.h"
#include "dovetail/data/rows/row_batch.h"
#include "dovetail/embedding/ranks/distributed.h"
#include "dovetail/models/recommender.h"
#include "dovetail/ops/gpu_graph.h"
#include "dovetail/plan/step/planned_step.h"
#include "dovetail/train/embedding_tables/lookups.h"
#include "dovetail/train/loop/step_outcome.h"
#include "dovetail/train/optimizer/optimizer.h"

namespace dovetail::train {

/// Rows of one step, and the lookups of their ids. A row is one sample.
struct StepRows {
  int64_t step;                 ///< step, counted from 0
  int64_t rows;                 ///< number of rows of all ranks
  int64_t micro_batch;          ///< samples of a rank per micro-batch
  data::RowBatch batch;         ///< rows of this rank
  embedding::Jagged ids;        ///< ids for all lookups (RecommenderLookups::ids)
  embedding::TableStep tables;  ///< state of the lookups, which are in progress
};

/// One step of a recommender over all ranks, except the update of its tables. The dense part is the
/// model without its embedding tables. The step runs forward and backward of the micro-batches and
/// reduces the gradients of the dense part. Then it updates the dense part, unless loss or gradient
/// is not finite. While the dense part runs on a micro-batch, the table rows of the next one are in
/// transit between ranks. The dense part takes `grain` samples at a time. So its sums have the same
/// bits for any micro-batch size that is a multiple of `grain`.
///
/// A memory plan covers the dense part only. In the planned step, one operation returns the pooled
/// rows of a micro-batch, and another operation reads their gradient. Memory of the tables does not
/// count towards the budget. This includes rows in transit, pooled rows and their gradients.
class RecommenderStep {
 public:
  struct Options {
    int64_t grain = 1;  ///< samples that the dense part takes at a time (recommender.grain)
    double clip = 0;    ///< maximum norm of the dense part's gradient; 0: no clipping
    int64_t bucket_bytes = 4 << 20;         ///< gradient bytes in one all-reduce between ranks
    std::vector<double> task_weights = {};  ///< weights of the tasks' losses; empty: 1 each
    /// Records forward and backward of the dense part as one CUDA graph, in the third step. Later
    /// steps of the same shapes replay it. Only for a job of one rank without a memory plan. Steps
    /// with several micro-batches run without it.
    ops::WorkRecorder record = {};
  };
  /// `lookups` must outlive this object. `optimizer` must already be bound to `model`.
  RecommenderStep(std::shared_ptr<models::Recommender> model, const RecommenderLookups& lookups,
                  Optimizer& optimizer, std::shared_ptr<comm::Group> group, Options options);
  RecommenderStep(const RecommenderStep&) = delete;  // recorded steps keep a pointer to this object
  RecommenderStep& operator=(const RecommenderStep&) = delete;

  /// Runs all further steps by a memory plan. Call it once. Throws UserError if planning is
  /// impossible.
  void plan_memory(plan::PlannedStep::Options options);
  /// Returns the memory plan, or null if plan_memory was not called.
  plan::PlannedStep* memory_plan() { return planned_ ? &*planned_ : nullptr; }

  /// Function that starts the lookups of the next step. It is called once per step, while rows of
  /// the current step are in transit. Returns null if there is no next step.
  using StartNext = std::function<embedding::TableStep*()>;

  /// Runs one step; all ranks call this together. If StepOutcome::skipped, nothing was updated.
  /// Otherwise the caller must still update the tables, with `rows.tables`.
  StepOutcome run(StepRows& rows, embedding::DistributedTables& tables, const StartNext& start_next,
                  double lr, bool want_stop);
  /// Runs only forward, backward and gradient reduction, without an update. For time measurements.
  void pass(StepRows& rows, embedding::DistributedTables& tables, const StartNext& start_next);

  /// Returns the seconds of forward and backward of the dense part, over the last step's
  /// micro-batches.
  double compute_s() const { return now_.clock.seconds; }

  /// Returns true if the dense part's forward and backward have been recorded.
  bool has_graph() const { return recorded_ && recorded_->replay; }
  /// Returns the reason why they could not be recorded. It is empty if recording succeeded or has
  /// not been tried.
  const std::string& graph_failure() const { return graph_failure_; }

  /// Returns the dense part's gradient sums of the last step, over ranks and micro-batches. They
  /// are not divided by the number of samples.
  const comm::GradientReducer& gradients() const { return reducer_; }

 private:
  /// State of the current step. Recorded operations read and write it when a memory plan replays
  /// them.
  struct Now {
    StepRows* rows = nullptr;
    embedding::DistributedTables* tables = nullptr;
    const StartNext* start_next = nullptr;
    embedding::TableStep* next = nullptr;  ///< lookups of the next step; null if there is none
    /// Gradient of the micro-batch's pooled rows, divided by the number of rows of the whole batch.
    at::Tensor gradient;
    double lr = 0;
    bool want_stop = false;
    StepOutcome outcome;
    StepClock clock;
  };
  /// Sums over the samples of this rank, float64 scalars. `sum`: loss in nats. `auxiliary`:
  /// auxiliary loss, undefined if the model has none. Both are undefined without samples.
  struct Losses {
    at::Tensor sum, auxiliary;
  };

  /// Returns the inputs of the dense part for a step, except pooled rows.
  plan::PlannedStep::Inputs inputs_of(const StepRows& rows);
  /// Runs add_gradients, then `agree_on_outcome`, then the optimizer's update of the dense part.
  void work(const std::vector<at::Tensor>& inputs);
  /// Runs forward and backward of all micro-batches, and reduces the gradients.
  Losses add_gradients(const std::vector<at::Tensor>& inputs);
  /// Returns the pooled rows of a micro-batch, (samples, columns). Also starts to gather the rows
  /// of the next micro-batch.
  at::Tensor look_up(int64_t micro_batch);
  /// Runs forward and backward of a micro-batch. `first`: index of its first sample among this
  /// rank's samples. `pooled`: its pooled rows. `last`: true for the last micro-batch of the step.
  void run_dense(const std::vector<at::Tensor>& inputs, int64_t first, const at::Tensor& pooled,
                 bool last, Losses& losses);
  /// Returns true if the dense part of this step, with one micro-batch, runs as a graph. The third
  /// step records it.
  bool runs_as_graph(const std::vector<at::Tensor>& inputs, const at::Tensor& pooled);
  /// Records work_of_graph, or stores the reason of a failure in `graph_failure_`.
  void record_graph(const std::vector<at::Tensor>& inputs, const at::Tensor& pooled);
  /// Computes the results of `recorded_` from its inputs.
  void work_of_graph();
  /// Runs the graph for this step's inputs. Leaves gradients in `reducer_` and `now_`.
  Losses replay_graph(const std::vector<at::Tensor>& inputs, const at::Tensor& pooled);
  /// Sends the gradient of the micro-batch's pooled rows to the ranks that hold the rows.
  void send_gradient(int64_t micro_batch);
  /// Adds up `loss_sum` and `auxiliary_sum` over ranks. `squares` is the squared norm of the
  /// gradient, which already is the sum over ranks. Returns the outcome of the step, the same on
  /// all ranks. Calls prepare_update: it sets learning rate and gradient scale of the optimizer's
  /// update, or skips the update.
  StepOutcome agree_on_outcome(double loss_sum, double auxiliary_sum, double squares) const;

  std::shared_ptr<models::Recommender> model_;
  const RecommenderLookups& lookups_;
  Optimizer& optimizer_;
  std::shared_ptr<comm::Group> group_;
  Options options_;
  comm::GradientReducer reducer_;
  Now now_;
  /// Tensor of shape (1) that stands for `now_` in a recorded step. A recording sees only changes
  /// of tensors, so operations that change `now_` are declared to change this tensor.
  at::Tensor outcome_marker_;
  std::optional<plan::PlannedStep> planned_;

  /// The dense part as a graph, and the tensors that it reads and writes. They keep their
  /// addresses.
  struct Recorded {
    std::vector<at::Tensor> inputs;  ///< as of `work`
    at::Tensor pooled;
    int64_t rows;                       ///< StepRows::rows
    at::Tensor gradient;                ///< result: gradient of `pooled`
    Losses losses;                      ///< result
    std::vector<at::Tensor> gradients;  ///< result: gradient sums, one per parameter
    std::function<void()> replay;       ///< empty while recording
  };
  std::optional<Recorded> recorded_;
  /// Number of steps still to run before the graph is recorded. In these steps, libraries allocate
  /// handles and workspaces, which is impossible while a graph is recorded.
  int64_t steps_before_graph_ = 2;
  std::string graph_failure_;
};

}  // namespace dovetail::train
