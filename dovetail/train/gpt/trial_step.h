#pragma once

#include <memory>
#include <optional>

#include "dovetail/models/gpt.h"
#include "dovetail/train/gpt/step.h"
#include "dovetail/train/numerics/quantization.h"
#include "dovetail/train/optimizer/optimizer.h"
#include "dovetail/train/resolve/resolve.h"

namespace dovetail {

/// The run of a config as far as its step's size goes, for a look at it: data that is not prepared
/// stays so, and nothing is written. UserError as `train`.
ResolvedRun resolve_trial(const RunConfig& config, Group& group);

/// The training steps of a GPT's run, on random tokens in place of its data, apart from its folder.
class TrialStep {
 public:
  /// `samples` of this rank a step, `micro_batch` of them at once.
  TrialStep(const ResolvedRun& run, std::shared_ptr<Group> group, int64_t samples,
            int64_t micro_batch);

  /// Takes a step; its seconds.
  double run();
  void plan_memory(const PlannedStep::Options& options) { step_->plan_memory(options); }
  const PlannedStep* memory_plan() const { return step_->memory_plan(); }

 private:
  const ResolvedRun& run_;
  std::shared_ptr<GPT> model_;
  std::optional<Optimizer> optimizer_;
  std::optional<Quantization> quantization_;
  std::optional<TrainStep> step_;
  at::Tensor tokens_;
};

}  // namespace dovetail
