#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "dovetail/comm/gradient_reducer.h"
#include "dovetail/jobs/executor_shares.h"
#include "dovetail/train/gpt/step_executor.h"

namespace dovetail::train {

/// Division of a TrainStep among executors of one process. Executor 0 is the owner: the thread and
/// the device of the TrainStep, with weights and optimizer. It computes the first micro-batches of
/// the step. The others are StepExecutors and compute the following ones, in their order.
///
/// The owner adds the gradients of the others one micro-batch after the other. So sums have the
/// order of a step of the owner alone. On the CPU they have the same bits, with any shares.
class StepSharing {
 public:
  /// `others`: executors 1, 2, ... `shares`: micro-batches of each executor; 0: it is left out.
  /// `micro_batch`: samples per micro-batch. `owner`: device of the weights. `layers`: the owner's
  /// layers with experts.
  StepSharing(std::vector<std::unique_ptr<StepExecutor>> others, std::vector<int64_t> shares,
              int64_t micro_batch, c10::Device owner, moe::Layers layers = {});

  /// Sets the shares of the next steps. Frees executors that are left out; they cannot come back.
  void set_shares(std::vector<int64_t> shares);
  const std::vector<int64_t>& shares() const { return shares_; }
  /// Returns true if an executor other than the owner computes micro-batches.
  bool shared() const;

  /// Starts the others on their part of `tokens` (samples of the step, T + 1), and returns the
  /// owner's part. The weights are those after `updates` updates; they are copied only if they have
  /// changed. They must stay as they are until `add_to` has returned. `pass` is the pass of the
  /// step's first micro-batch.
  at::Tensor start(const at::Tensor& tokens, int64_t updates, const moe::Pass& pass);
  /// Waits for the others. Adds their gradients to `gradients`, and the loads of their experts to
  /// the owner's layers. Adds their losses to `loss` and `router`, which are as in
  /// StepExecutor::MicroBatch. Call it after the owner's own backward passes; do not arm them.
  void add_to(comm::GradientReducer& gradients, at::Tensor& loss, at::Tensor& router);

  /// Returns the times of the last step. Call it after the owner's device has completed the step.
  std::vector<jobs::ExecutorShares::Times> times() const;

 private:
  /// Point in the owner's work: host time, and with a GPU an event in its current stream.
  struct Moment {
    double host_s;
    std::optional<c10::Event> event;
  };
  Moment now() const;
  static double seconds(const Moment& from, const Moment& to);
  std::optional<c10::Event> weights_ready() const;

  std::vector<std::unique_ptr<StepExecutor>> others_;  ///< null if left out
  std::vector<int64_t> shares_;
  int64_t micro_batch_;
  c10::Device owner_;
  moe::Layers layers_;
  std::optional<int64_t> copied_updates_;  ///< `updates` of the weights that all others have
  /// Begin and end of the owner's own passes, and of adding the gradients of each other executor.
  std::optional<Moment> begin_, end_;
  std::vector<std::pair<Moment, Moment>> added_;
  std::vector<jobs::ExecutorShares::Times> of_others_;  ///< measured by the executors themselves
};

}  // namespace dovetail::train
