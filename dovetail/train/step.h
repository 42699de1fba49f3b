#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/comm/reducer.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/optimizer.h"

namespace dovetail {

struct StepOptions {
  int64_t micro_batch = 1;  ///< samples at once
  double clip = 0;          ///< 0: none
  int64_t bucket_bytes = 4 << 20;
  /// The ranks that hold each parameter of the optimizer; empty: all of the group.
  std::vector<std::shared_ptr<Group>> gradient_groups = {};
};

/// Where the samples of a rank stand: what is random in a step depends on it and on nothing else.
struct StepPlace {
  uint64_t seed = 0;         ///< of the step, the same on all ranks
  int64_t first_sample = 0;  ///< index of the rank's first sample in the batch of all ranks
  int64_t most_samples = 0;  ///< of any rank: where experts are spread all make as many forward passes
};

/// What all ranks agree on after a step: the same bits on each.
struct StepOutcome {
  double loss = 0;                       ///< nats per token of the global batch
  std::optional<double> router_loss;     ///< what the routers add to it, where there are experts
  std::optional<double> auxiliary_loss;  ///< what a recommender's auxiliary loss adds to it
  double grad_norm = 0;                  ///< of the mean gradient
  int64_t tokens = 0;                    ///< in the global batch
  bool skipped = false;                  ///< loss or norm not finite: nothing was updated
  bool stop = false;                     ///< a rank wants to stop
};

/// One optimizer step over all ranks: forward and backward of the micro-batches, reduction, guard, update.
class TrainStep {
 public:
  /// `optimizer` is bound to `model` already, in its final dtype and on its device.
  TrainStep(std::shared_ptr<GPT> model, Optimizer& optimizer, std::shared_ptr<Group> group, StepOptions options);

  /// tokens (samples of this rank, T + 1) on the CPU. All ranks together.
  StepOutcome run(const at::Tensor& tokens, double lr, bool want_stop, const StepPlace& place = {});

  /// The reduced gradient sums of the last step (not divided by tokens).
  const GradientReducer& gradients() const { return reducer_; }

 private:
  std::shared_ptr<GPT> model_;
  Optimizer& optimizer_;
  std::shared_ptr<Group> group_;
  StepOptions options_;
  GradientReducer reducer_;
};

}  // namespace dovetail
