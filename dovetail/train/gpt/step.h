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

namespace dovetail {

struct StepOptions {
  int64_t micro_batch = 1;  ///< samples at once
  double clip = 0;          ///< 0: none
  int64_t bucket_bytes = 4 << 20;
  /// The ranks that hold each parameter of the optimizer; empty: all of the group.
  std::vector<std::shared_ptr<Group>> gradient_groups = {};
  bool scatter_gradients =
      false;  ///< GradientReducer::Options::scatter, for an optimizer whose state is sharded
  /// Forward and backward on a GPU are one CUDA graph from the third step on. For one rank whose
  /// steps differ in their tokens alone; its thread has a stream of its own (`use_own_stream`).
  bool cuda_graph = false;
};

/// One optimizer step over all ranks: forward and backward of the micro-batches, reduction, guard,
/// update.
class TrainStep {
 public:
  /// `optimizer` is bound to `model` already, in its final dtype and on its device.
  TrainStep(std::shared_ptr<GPT> model, Optimizer& optimizer, std::shared_ptr<Group> group,
            StepOptions options);
  TrainStep(const TrainStep&) = delete;  // a recorded step refers to it
  TrainStep& operator=(const TrainStep&) = delete;

  /// From the next step on by a memory plan. Once; UserError for what cannot be planned.
  void plan_memory(PlannedStep::Options options);
  /// Null without one.
  const PlannedStep* memory_plan() const { return planned_ ? &*planned_ : nullptr; }

  /// tokens (samples of this rank, T + 1) on the CPU. All ranks together.
  StepOutcome run(const at::Tensor& tokens, double lr, bool want_stop, const StepPlace& place = {});

  /// Seconds that forward and backward of the last step's micro-batches took. Waiting for other
  /// ranks' sums does not count; waits of spread experts do, and of scattered gradients for memory.
  /// 0 on a GPU, which is done later.
  double compute_s() const { return now_.clock.seconds; }

  /// True once forward and backward have been recorded as a CUDA graph.
  bool has_graph() const { return recorded_.has_value(); }
  /// Reason why the graph could not be recorded; empty if it could, or has not been tried.
  const std::string& graph_failure() const { return graph_failure_; }

  /// The reduced gradient sums of the last step (not divided by tokens).
  const GradientReducer& gradients() const { return reducer_; }

 private:
  /// What a step is given beside its tokens, and what it comes to: a recorded step reads and writes
  /// it anew each time.
  struct Now {
    double lr = 0;
    bool want_stop = false;
    StepPlace place;
    int64_t weight = 0;  ///< targets of this rank
    StepOutcome outcome;
    StepClock clock;
  };

  /// Sums of the losses, the gradient in `reducer_`, the verdict on it in `now_`, the update.
  void work(const at::Tensor& tokens);
  struct Losses {
    at::Tensor sum, router;  ///< float64 scalars; router undefined where there are no experts
  };
  Losses add_gradients(const at::Tensor& tokens);
  std::vector<at::Tensor> squares_of_share() const;
  /// Results of forward and backward, on the model's device.
  struct Gradients {
    Losses losses;
    std::vector<at::Tensor> squares;  ///< float64 parts of the gradient's squared norm
  };
  Gradients make_gradients(const at::Tensor& tokens);
  /// `make_gradients` by a CUDA graph where the step has one.
  Gradients make_gradients_by_graph(const at::Tensor& tokens);
  void record_graph(const at::Tensor& tokens);
  /// On the sums of this rank; tells the optimizer.
  StepOutcome judge(double loss_sum, std::optional<double> router_sum, double squares) const;

  std::shared_ptr<GPT> model_;
  Optimizer& optimizer_;
  std::shared_ptr<Group> group_;
  StepOptions options_;
  GradientReducer reducer_;
  Now now_;
  at::Tensor judged_;  ///< (1): what the operations that read and write `now_` change
  std::optional<PlannedStep> planned_;

  /// A recorded forward and backward, and the tensors that it reads and writes.
  struct Recorded {
    at::Tensor tokens;
    Gradients made;
    std::vector<at::Tensor> gradients;  ///< `reducer_.gradient(i)`
    std::unique_ptr<GpuGraph> graph;
  };
  std::optional<Recorded> recorded_;
  int64_t steps_before_graph_ =
      2;  ///< in them libraries allocate what no graph may: handles, workspaces
  std::string graph_failure_;
};

}  // namespace dovetail
