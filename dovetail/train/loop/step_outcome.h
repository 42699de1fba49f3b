#pragma once

#include <cstdint>
#include <optional>

#include "dovetail/train/optimizer/optimizer.h"

namespace dovetail::train {

/// Position of a rank's samples in the batch. Randomness in a step depends on these values only.
struct StepPlace {
  uint64_t seed = 0;         ///< seed of the step, the same on all ranks
  int64_t first_sample = 0;  ///< index of the rank's first sample in the batch of all ranks
  /// Maximum samples over ranks. If forward passes exchange data, all ranks make as many passes as
  /// the rank with the maximum.
  int64_t most_samples = 0;
  /// False if the step does extra work, so that it cannot run as a CUDA graph.
  bool graphed = true;
};

/// Result of a step. It has the same bits on all ranks.
struct StepOutcome {
  double loss = 0;  ///< nats per token of the global batch
  /// Routers' losses, which add to `loss` in training; nullopt without experts.
  std::optional<double> router_loss;
  /// Auxiliary loss of a recommender, which adds to `loss` in training.
  std::optional<double> auxiliary_loss;
  double grad_norm = 0;  ///< norm of the mean gradient
  int64_t tokens = 0;    ///< tokens in the global batch
  bool skipped = false;  ///< loss or norm was not finite, so nothing was updated
  bool stop = false;     ///< a rank wants to stop
};

/// Total seconds of a step's forward and backward passes. It also works in a recorded step, whose
/// plan may run more or fewer operations between `start` and `stop`.
struct StepClock {
  double seconds = 0;

  void start();
  void stop();

 private:
  double start_s_ = 0;
};

struct UpdateNumbers {
  double weight;    ///< divisor of the gradient sums: targets or samples of the global batch
  double max_norm;  ///< maximum norm of the mean gradient (train.clip); 0: no clipping
  double lr;
};
/// Sets the optimizer's next update, and `outcome.skipped`. A loss or norm that is not finite skips
/// the update.
void prepare_update(StepOutcome& outcome, const UpdateNumbers& numbers, Optimizer& optimizer);

}  // namespace dovetail::train
