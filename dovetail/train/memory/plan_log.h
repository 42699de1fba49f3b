#pragma once

#include <filesystem>
#include <memory>

#include "dovetail/plan/step/planned_step.h"

namespace dovetail::train {

/// Log of a run's memory plan. When a plan exists, logs a summary and writes its files
/// (PlannedStep::write). Writes the files again with measured times, once PlannedStep::is_measured
/// is true or training ends.
class MemoryPlanLog {
 public:
  /// Call after each step. `folder` is the run's folder, `last_step` is true for the last step of
  /// the run. Only rank 0 calls it: each rank has a plan of its own.
  void report(const plan::PlannedStep& step, const std::filesystem::path& folder, bool last_step);

 private:
  bool said_ = false, measured_ = false;
};

}  // namespace dovetail::train
