#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dovetail/plan/step/memory_record.h"
#include "dovetail/plan/step/planned_step.h"

namespace dovetail::plan {

/// Measurements of a step without a plan.
struct EagerStep {
  double seconds = 0;
  int64_t process_bytes = 0;  ///< growth of the process since before it made the model
};

struct PlanTextParts {
  bool layers = false, curve = false;  ///< add the table of layers, or of budgets
  std::optional<EagerStep> eager = {};
};

/// Returns the text about a plan that `dovetail plan` prints: sizes, times and peaks, decisions.
/// Times are given as multiples of the eager step's, or else of the time predicted for a step that
/// keeps everything.
std::string plan_text(const MemoryPlanReport& report, const PlannedStepView& step,
                      const PlanTextParts& parts = {});

}  // namespace dovetail::plan
