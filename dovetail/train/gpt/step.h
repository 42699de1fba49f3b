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
#include "dovetail/plan/step/planned_step.h"
#include "dovetail/train/gpt/step_sharing.h"
#include "dovetail/train/loop/step_outcome.h"
#include "dovetail/train/optimizer/optimizer.h"

namespace dovetail::train {

/// Options of a TrainStep.
struct StepOptions {
  int64_t micro_batch = 1;         ///< samples per micro-batch
  double clip = 0;                 ///< maximum norm of the mean gradient; 0: no clipping
  int64_t bucket_bytes = 4 << 20;  ///< gradient bytes in one all-reduce between ranks
  /// One group for each parameter of the optimizer: the ranks that hold the parameter. Its gradient
  /// is summed over these ranks. Empty: every parameter is held by all ranks.
  std::vector<std::shared_ptr<comm::Group>> gradient_groups = {};
  /// Keep only this rank's share of the gradient sums (GradientReducer::Options::scatter). Only for
  /// an optimizer whose state is sharded.
  bool scatter_gradients = false;
  /// Run forward and backward on a GPU as one CUDA graph, from the third step on. Only for a job of
  /// one rank whose steps differ only in their tokens. The calling thread must have a stream of its
  /// own (`use_own_stream`).
  bool cuda_graph = false;
  /// Executors that compute micro-batches of each step beside this rank, or null. Only for a job of
  /// one rank without experts and without a memory plan. Must outlive the TrainStep.
  StepSharing* sharing = nullptr;
};

/// Optimizer step over all ranks: forward and backward of the micro-batches, reduction of
/// gradients, update. Skips the update if loss or gradient is not finite.
class TrainStep {
 public:
  /// `optimizer` must already be bound to `model`, which has its final dtype and device.
  TrainStep(std::shared_ptr<models::GPT> model, Optimizer& optimizer,
            std::shared_ptr<comm::Group> group, StepOptions options);
  TrainStep(const TrainStep&) = delete;  // recorded steps keep a pointer to this object
  TrainStep& operator=(const TrainStep&) = delete;

  /// Runs all further steps by a memory plan. Call it once. Throws UserError if planning is
  /// impossible.
  void plan_memory(plan::PlannedStep::Options options);
  /// Returns the memory plan, or null if plan_memory was not called.
  plan::PlannedStep* memory_plan() { return planned_ ? &*planned_ : nullptr; }

  /// Runs one step. tokens: (samples of this rank, T + 1) on the CPU, for T predicted tokens per
  /// sample. `want_stop`: this rank wants to stop training (StepOutcome::stop). All ranks call this
  /// together.
  StepOutcome run(const at::Tensor& tokens, double lr, bool want_stop, const StepPlace& place = {});

  /// Returns the seconds of the last step's forward and backward passes. They do not include
  /// waiting for other ranks' gradient sums. They include waiting for the tokens that ranks
  /// exchange for their experts. With scatter_gradients, they also include waiting for the memory
  /// of an earlier reduction. Returns 0 on a GPU, which computes after the calls have returned.
  double compute_s() const { return now_.clock.seconds; }

  /// Returns true if forward and backward have been recorded as a CUDA graph.
  bool has_graph() const { return recorded_.has_value(); }
  /// Returns the reason why the graph could not be recorded. It is empty if recording succeeded or
  /// has not been tried.
  const std::string& graph_failure() const { return graph_failure_; }

  /// Returns the gradient sums of the last step, over ranks and micro-batches. They are not divided
  /// by the number of tokens.
  const comm::GradientReducer& gradients() const { return reducer_; }

 private:
  /// State of the current step in addition to its tokens. Recorded operations read and write it
  /// when a memory plan replays them.
  struct Now {
    double lr = 0;
    bool want_stop = false;
    StepPlace place;
    int64_t weight = 0;  ///< number of target tokens of this rank
    StepOutcome outcome;
    StepClock clock;
  };

  /// Runs forward and backward, then `agree_on_outcome`, then the optimizer's update. Leaves the
  /// gradients in `reducer_` and the outcome in `now_`.
  void work(const at::Tensor& tokens);
  /// Sums over the tokens of this rank.
  struct Losses {
    /// Float64 scalars. `sum`: loss in nats. `router`: losses of the routers; undefined without
    /// experts.
    at::Tensor sum, router;
  };
  /// Returns the forward pass of the first micro-batch of this rank.
  moe::Pass first_pass(int64_t tokens_of_a_sample) const;
  /// Runs forward and backward of all micro-batches, and reduces the gradients.
  Losses add_gradients(const at::Tensor& tokens);
  /// Returns sums of squares (squares_of) of the gradients in this rank's share. Each gradient is
  /// in the share of one rank. So these sums, added over all ranks, give the square of the global
  /// norm.
  std::vector<at::Tensor> squares_of_share() const;
  /// Results of forward and backward, on the model's device.
  struct Gradients {
    Losses losses;
    std::vector<at::Tensor> squares;  ///< result of squares_of_share
  };
  /// Runs add_gradients and squares_of_share.
  Gradients make_gradients(const at::Tensor& tokens);
  /// Returns the results of make_gradients, computed by the CUDA graph if it is recorded and fits
  /// this step. The third step records the graph if StepOptions::cuda_graph is true.
  Gradients make_gradients_by_graph(const at::Tensor& tokens);
  /// Does the same as make_gradients, together with the executors of StepOptions::sharing.
  Gradients make_shared_gradients(const at::Tensor& tokens);
  /// Returns true if other executors compute micro-batches of this step.
  bool shared() const { return options_.sharing != nullptr && options_.sharing->shared(); }
  /// Records make_gradients as a CUDA graph, or stores the reason of a failure in `graph_failure_`.
  void record_graph(const at::Tensor& tokens);
  /// Adds up the arguments, which are sums of this rank, over all ranks. Returns the outcome of the
  /// step, which is the same on all ranks. Calls prepare_update: it sets learning rate and gradient
  /// scale of the optimizer's update, or skips the update.
  StepOutcome agree_on_outcome(double loss_sum, std::optional<double> router_sum,
                               double squares) const;

  std::shared_ptr<models::GPT> model_;
  Optimizer& optimizer_;
  std::shared_ptr<comm::Group> group_;
  StepOptions options_;
  comm::GradientReducer reducer_;
  Now now_;
  /// Tensor of shape (1) that stands for `now_` in a recorded step. A recording sees only changes
  /// of tensors, so operations that change `now_` are declared to change this tensor.
  at::Tensor outcome_marker_;
  std::optional<plan::PlannedStep> planned_;

  /// CUDA graph of make_gradients, and the tensors that it reads and writes.
  struct Recorded {
    at::Tensor tokens;
    Gradients made;                     ///< results of the graph
    std::vector<at::Tensor> gradients;  ///< gradient sums that the graph writes, one per parameter
    std::unique_ptr<ops::GpuGraph> graph;
  };
  std::optional<Recorded> recorded_;
  /// Number of steps still to run before the graph is recorded. In these steps, libraries allocate
  /// handles and workspaces, which is impossible while a graph is recorded.
  int64_t steps_before_graph_ = 2;
  std::string graph_failure_;
};

}  // namespace dovetail::train
