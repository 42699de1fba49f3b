#pragma once

#include <cstdint>
#include <memory>

#include "dovetail/comm/group.h"
#include "dovetail/plan/device/step_device.h"
#include "dovetail/plan/step/planned_step.h"
#include "dovetail/train/resolve/resolve.h"

namespace dovetail::train {

/// Makes only those decisions of a ResolvedRun that determine the sizes of a step. Does not
/// tokenize text and writes no file. Throws UserError like `train`.
ResolvedRun resolve_trial(const RunConfig& config, comm::Group& group);

/// Training steps of a run on random tokens or images, to measure time and memory. The run's data
/// and folder are not used.
class TrialStep {
 public:
  explicit TrialStep(c10::Device device) : device_(plan::step_device(device)) {}
  virtual ~TrialStep() = default;

  /// Runs a step and returns its duration in seconds.
  double run();
  /// Runs all further steps by a memory plan (TrainStep::plan_memory).
  virtual void plan_memory(const plan::PlannedStep::Options& options) = 0;
  virtual plan::PlannedStep* memory_plan() = 0;

 private:
  virtual void run_once() = 0;

  const plan::StepDevice& device_;
};

/// Makes the trial of a GPT or a vision model. `samples`: samples of this rank per step.
/// `micro_batch`: samples per micro-batch. `run` must outlive the result.
std::unique_ptr<TrialStep> make_trial(const ResolvedRun& run, std::shared_ptr<comm::Group> group,
                                      int64_t samples, int64_t micro_batch);

}  // namespace dovetail::train
