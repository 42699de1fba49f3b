#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/comm/gradient_reducer.h"
#include "dovetail/comm/group.h"
#include "dovetail/models/gpt.h"
#include "dovetail/ops/gpu_graph.h"
#include "dovetail/train/loop/step_outcome.h"
#include "dovetail/train/memory/planned_step.h"
#include "dovetail/train/optimizer/optimizer.h"

namespace dovetail::train {

struct StepOptions {
  int64_t micro_batch = 1;  ///< samples per micro-batch
  double clip = 0;          ///< maximum norm of the mean gradient; 0: no clipping
  int64_t bucket_bytes = 4 << 20;
  /// Ranks that hold each parameter of the optimizer. Empty: all ranks of the group.
  std::vector<std::shared_ptr<comm::Group>> gradient_groups = {};
  /// Sets GradientReducer::Options::scatter, for an optimizer whose state is sharded.
  bool scatter_gradients = false;
  /// Run forward and backward on a GPU as one CUDA graph, from the third step on. This is for one
  /// rank whose steps differ only in their tokens. Its thread has a stream of its own
  /// (`use_own_stream`).
  bool cuda_graph = false;
};

/// One optimizer step over all ranks: forward and backward of the micro-batches, reduction, update.
/// Skips the update if loss or gradient is not finite.
class TrainStep {
 public:
  /// `optimizer` must already be bound to `model`, which has its final dtype and device.
  TrainStep(std::shared_ptr<models::GPT> model, Optimizer& optimizer,
            std::shared_ptr<comm::Group> group, StepOptions options);
  TrainStep(const TrainStep&) = delete;  // recorded steps keep a pointer to this object
  TrainStep& operator=(const TrainStep&) = delete;

  /// Runs all further steps by a memory plan. Call it once. Throws UserError if planning is
  /// impossible.
  void plan_memory(PlannedStep::Options options);
  /// Returns the memory plan, or null if plan_memory was not called.
  const PlannedStep* memory_plan() const { return planned_ ? &*planned_ : nullptr; }

  /// Runs one step; all ranks call this together. tokens: (samples of this rank, T + 1) on the CPU.
  StepOutcome run(const at::Tensor& tokens, double lr, bool want_stop, const StepPlace& place = {});

  /// Returns the seconds of forward and backward, over the last step's micro-batches. Waiting for
  /// other ranks' gradient sums does not count. Waiting in the exchange of experts counts, and so
  /// does waiting of scattered gradients for memory. Returns 0 on a GPU, where the work ends later.
  double compute_s() const { return now_.clock.seconds; }

  /// Returns true once forward and backward have been recorded as a CUDA graph.
  bool has_graph() const { return recorded_.has_value(); }
  /// Returns the reason why the graph could not be recorded; empty if it could, or has not been
  /// tried.
  const std::string& graph_failure() const { return graph_failure_; }

  /// Returns the reduced gradient sums of the last step, not divided by the number of tokens.
  const comm::GradientReducer& gradients() const { return reducer_; }

 private:
  /// State of the current step in addition to its tokens. Recorded operations read and write it in
  /// each replay.
  struct Now {
    double lr = 0;
    bool want_stop = false;
    StepPlace place;
    int64_t weight = 0;  ///< number of targets of this rank
    StepOutcome outcome;
    StepClock clock;
  };

  /// Computes loss sums, gradients (in `reducer_`) and outcome (in `now_`). Then updates the
  /// weights.
  void work(const at::Tensor& tokens);
  struct Losses {
    /// Float64 scalars; `router` is undefined without experts.
    at::Tensor sum, router;
  };
  Losses add_gradients(const at::Tensor& tokens);
  std::vector<at::Tensor> squares_of_share() const;
  /// Results of forward and backward, on the model's device.
  struct Gradients {
    Losses losses;
    std::vector<at::Tensor> squares;  ///< float64 parts of the gradient's squared norm
  };
  Gradients make_gradients(const at::Tensor& tokens);
  /// Runs `make_gradients` as a CUDA graph if the step has one.
  Gradients make_gradients_by_graph(const at::Tensor& tokens);
  void record_graph(const at::Tensor& tokens);
  /// Returns the outcome from the sums of this rank. Passes the update's numbers to the optimizer.
  StepOutcome judge(double loss_sum, std::optional<double> router_sum, double squares) const;

  std::shared_ptr<models::GPT> model_;
  Optimizer& optimizer_;
  std::shared_ptr<comm::Group> group_;
  StepOptions options_;
  comm::GradientReducer reducer_;
  Now now_;
  /// Tensor of shape (1) that represents `now_` in a recorded step, where only changes of tensors
  /// are visible.
  at::Tensor judged_;
  std::optional<PlannedStep> planned_;

  /// A recorded forward and backward, and the tensors that it reads and writes.
  struct Recorded {
    at::Tensor tokens;
    Gradients made;
    std::vector<at::Tensor> gradients;  ///< `reducer_.gradient(i)`
    std::unique_ptr<ops::GpuGraph> graph;
  };
  std::optional<Recorded> recorded_;
  /// Steps before recording. In these steps, libraries allocate what a graph cannot: handles,
  /// workspaces.
  int64_t steps_before_graph_ = 2;
  std::string graph_failure_;
};

}  // namespace dovetail::train
