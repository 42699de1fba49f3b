#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "dovetail/comm/gradient_reducer.h"
#include "dovetail/comm/group.h"
#include "dovetail/data/images/image_loader.h"
#include "dovetail/models/vision.h"
#include "dovetail/plan/step/planned_step.h"
#include "dovetail/train/loop/step_outcome.h"
#include "dovetail/train/optimizer/optimizer.h"

namespace dovetail::train {

/// One step of a vision model over all ranks: forward and backward of the micro-batches, reduction
/// of gradients, update. Skips the update if loss or gradient is not finite.
///
/// Batch norms take their statistics from one micro-batch of one rank. Dropout draws from ATen's
/// default generator, which each step seeds.
class VisionStep {
 public:
  struct Options {
    int64_t micro_batch = 1;         ///< samples of a rank at a time
    double clip = 0;                 ///< maximum norm of the mean gradient; 0: no clipping
    int64_t bucket_bytes = 4 << 20;  ///< gradient bytes in one all-reduce between ranks
  };
  /// `optimizer` must already be bound to `model`, which has its final device.
  VisionStep(std::shared_ptr<models::VisionModel> model, Optimizer& optimizer,
             std::shared_ptr<comm::Group> group, Options options);
  VisionStep(const VisionStep&) = delete;  // recorded steps keep a pointer to this object
  VisionStep& operator=(const VisionStep&) = delete;

  /// Runs all further steps by a memory plan. Call it once. Throws UserError if planning is
  /// impossible.
  void plan_memory(plan::PlannedStep::Options options);
  /// Returns the memory plan, or null if plan_memory was not called.
  plan::PlannedStep* memory_plan() { return planned_ ? &*planned_ : nullptr; }

  /// Runs one step on this rank's samples, which are on the CPU. `seed` is the seed of the dropout
  /// of this rank. `want_stop`: this rank wants to stop training (StepOutcome::stop). All ranks
  /// call this together.
  StepOutcome run(const data::ImageBatch& batch, double lr, bool want_stop, uint64_t seed);

  /// Returns the seconds of the last step's forward and backward passes on a CPU; 0 on a GPU.
  double compute_s() const { return now_.clock.seconds; }
  /// Returns the gradient sums of the last step, over ranks and micro-batches.
  const comm::GradientReducer& gradients() const { return reducer_; }

 private:
  /// State of the current step. Recorded operations read and write it when a memory plan replays
  /// them.
  struct Now {
    double lr = 0;
    bool want_stop = false;
    int64_t samples = 0, targets = 0;  ///< numbers of this rank
    StepOutcome outcome;
    StepClock clock;
  };

  /// Runs add_gradients, then `agree_on_outcome`, then the optimizer's update.
  void work(const at::Tensor& images, const at::Tensor& targets);
  /// Runs forward and backward of all micro-batches, and reduces the gradients. Returns the sum of
  /// the losses of this rank's targets, a float64 scalar.
  at::Tensor add_gradients(const at::Tensor& images, const at::Tensor& targets);
  /// Adds up loss and targets over all ranks. `squares`: square of the norm of the gradient sums.
  /// Returns the outcome, which is the same on all ranks, and calls prepare_update.
  StepOutcome agree_on_outcome(double loss_sum, double squares) const;

  std::shared_ptr<models::VisionModel> model_;
  Optimizer& optimizer_;
  std::shared_ptr<comm::Group> group_;
  Options options_;
  comm::GradientReducer reducer_;
  Now now_;
  /// Tensor of shape (1) that stands for `now_` in a recorded step. A recording sees only changes
  /// of tensors, so operations that change `now_` are declared to change this tensor.
  at::Tensor outcome_marker_;
  std::optional<plan::PlannedStep> planned_;
};

}  // namespace dovetail::train
