#pragma once

#include <filesystem>
#include <memory>

#include "dovetail/train/memory/planned_step.h"

namespace dovetail::train {

/// Log of a run's memory plan. Once there is a plan, logs its result and writes its files. Writes
/// the files again when steps that ran by the plan were measured.
class MemoryPlanLog {
 public:
  /// Call after each step. `folder` is the run's folder. Only rank 0 calls it: each rank has a plan
  /// of its own.
  void report(const PlannedStep& step, const std::filesystem::path& folder, bool last_step);

 private:
  bool said_ = false, measured_ = false;
};

}  // namespace dovetail::train
