#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dovetail/train/memory/planned_step.h"

namespace dovetail {

struct MemorySection;
struct RunConfig;

/// Throws UserError where [memory] says something that cannot be, and where it has a budget for a
/// run whose steps are not all alike, naming what makes them differ.
void check_memory(const RunConfig& config);

/// Null without a budget or a folder; made before anything that a planned step works on.
std::shared_ptr<plan::PagedAllocations> paged_until_there_is_a_plan(const MemorySection& memory);

/// Choices of memory.allow.
std::vector<std::string> memory_techniques();

/// What [memory] asks of a planned step.
PlannedStep::Options planned_step_options(const MemorySection& memory);

}  // namespace dovetail
