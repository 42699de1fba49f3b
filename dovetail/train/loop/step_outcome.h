#pragma once

#include <cstdint>
#include <optional>

#include "dovetail/train/optimizer/optimizer.h"

namespace dovetail {

/// Where the samples of a rank stand: what is random in a step depends on it and on nothing else.
struct StepPlace {
  uint64_t seed = 0;         ///< of the step, the same on all ranks
  int64_t first_sample = 0;  ///< index of the rank's first sample in the batch of all ranks
  int64_t most_samples =
      0;  ///< maximum over ranks: where micro-batches meet all make as many forward passes
  bool graphed = true;  ///< false: this step does more than others, so no CUDA graph runs it
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

/// How long passes of a step took, one after another; in a recorded step, too, whose plan may do
/// more or less between.
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

}  // namespace dovetail
