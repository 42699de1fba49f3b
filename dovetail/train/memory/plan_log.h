#pragma once

#include <filesystem>
#include <memory>

#include "dovetail/train/memory/planned_step.h"

namespace dovetail {

/// What a run tells of its memory plan: once there is one, what it came to, and its files; those
/// again when steps by it were measured.
class MemoryPlanLog {
 public:
  /// After a step. `folder` is the run's. On rank 0: others have plans of their own.
  void report(const PlannedStep& step, const std::filesystem::path& folder, bool last_step);

 private:
  bool said_ = false, measured_ = false;
};

}  // namespace dovetail
