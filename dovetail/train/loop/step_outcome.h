#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "dovetail/plan/record/capture.h"
#include "dovetail/train/optimizer/optimizer.h"

namespace dovetail::train {

/// Seed of a step, and position of a rank's samples in the batch. Randomness in a step depends on
/// these values only.
struct StepPlace {
  uint64_t seed = 0;         ///< seed of the step, the same on all ranks
  int64_t first_sample = 0;  ///< index of the rank's first sample in the batch of all ranks
  /// Maximum number of samples of any rank in this step. If forward passes exchange data, all ranks
  /// make as many passes as the rank with the maximum.
  int64_t maximum_samples = 0;
  /// True if the step may run as a CUDA graph. False if it also measures statistics.
  bool graphed = true;
};

/// Result of a step. It has the same bits on all ranks.
struct StepOutcome {
  /// Training loss in nats per token (or sample), mean over the batch of all ranks.
  double loss = 0;
  /// Losses of the routers times their coefficients, per token. Training minimizes `loss` plus
  /// this. It is nullopt without experts.
  std::optional<double> router_loss;
  /// Auxiliary loss of a recommender, weighted, per sample. Training minimizes `loss` plus this. It
  /// is nullopt if the model has none.
  std::optional<double> auxiliary_loss;
  double grad_norm = 0;  ///< global norm of the mean gradient, before clipping
  int64_t tokens = 0;    ///< tokens (or samples) in the batch of all ranks
  bool skipped = false;  ///< loss or norm was not finite, so nothing was updated
  bool stop = false;     ///< a rank wants to stop training after this step
};

/// Clock that adds up the seconds between `start` and `stop`, for the forward and backward passes
/// of a step. With a memory plan, other operations may run between `start` and `stop` than without
/// one. Their time counts.
struct StepClock {
  double seconds = 0;  ///< sum over all pairs of `start` and `stop`

  void start();
  void stop();

 private:
  double start_s_ = 0;
};

/// Numbers that an optimizer update needs in addition to the gradients.
struct UpdateNumbers {
  /// Divisor that turns gradient sums into the mean gradient: target tokens or samples in the batch
  /// of all ranks.
  double weight;
  double max_norm;  ///< maximum norm of the mean gradient (train.clip); 0: no clipping
  double lr;        ///< learning rate
};
/// Prepares the next update of `optimizer`. If the loss and the norm in `outcome` are finite, sets
/// the optimizer's learning rate and gradient scale (with clipping). Otherwise sets
/// `outcome.skipped`, and the next update changes nothing.
void prepare_update(StepOutcome& outcome, const UpdateNumbers& numbers, Optimizer& optimizer);

/// Runs `decide` as an operation of the step (base/operation.h), so that a recorded step repeats
/// it. `squares` is a result of squares_of; `decide` gets the sum of all its values. `losses` are
/// float64 scalars, which `decide` gets on the CPU; undefined ones stay undefined.
///
/// `decide` may change state of the step. A recording sees only changes of tensors, so `marker`, a
/// tensor of shape (1), stands for that state.
void judge(const at::Tensor& marker, std::vector<at::Tensor> squares,
           const std::vector<at::Tensor>& losses,
           std::function<void(double squares, std::span<const at::Tensor> losses)> decide);

/// Returns the parameters, the optimizer's state, and `marker` (judge), for a memory plan.
plan::StepTensors tensors_of_step(const torch::nn::Module& model, const Optimizer& optimizer,
                                  const at::Tensor& marker);

}  // namespace dovetail::train
