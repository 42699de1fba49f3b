#pragma once

#include "dovetail/train/planned_step.h"

namespace dovetail {

struct MemorySection;
struct RunConfig;

/// Throws UserError where [memory] says something that cannot be, and where it has a budget for a run whose steps are
/// not all alike, naming what makes them differ.
void check_memory(const RunConfig& config);

/// What [memory] asks of a planned step.
PlannedStep::Options planned_step_options(const MemorySection& memory);

}  // namespace dovetail
