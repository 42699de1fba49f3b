#pragma once

#include <memory>
#include <optional>

#include "dovetail/models/gpt.h"
#include "dovetail/train/gpt/step.h"
#include "dovetail/train/numerics/quantization.h"
#include "dovetail/train/optimizer/optimizer.h"
#include "dovetail/train/resolve/resolve.h"

namespace dovetail::train {

/// Makes only those decisions of a ResolvedRun that determine the sizes of a step. Does not
/// tokenize text and writes no file. Throws UserError like `train`.
ResolvedRun resolve_trial(const RunConfig& config, comm::Group& group);

/// Training steps of a GPT's run on random tokens, to measure time and memory. The run's data and
/// folder are not used.
class TrialStep {
 public:
  /// `samples`: samples of this rank per step. `micro_batch`: samples per micro-batch. `run` must
  /// outlive this object.
  TrialStep(const ResolvedRun& run, std::shared_ptr<comm::Group> group, int64_t samples,
            int64_t micro_batch);

  /// Runs a step and returns its duration in seconds.
  double run();
  /// Runs all further steps by a memory plan (TrainStep::plan_memory).
  void plan_memory(const plan::PlannedStep::Options& options) { step_->plan_memory(options); }
  const plan::PlannedStep* memory_plan() const { return step_->memory_plan(); }

 private:
  const ResolvedRun& run_;
  std::shared_ptr<models::GPT> model_;
  std::optional<Optimizer> optimizer_;
  std::optional<Quantization> quantization_;
  std::optional<TrainStep> step_;
  at::Tensor tokens_;
};

}  // namespace dovetail::train
