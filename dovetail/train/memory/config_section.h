#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dovetail/train/memory/planned_step.h"

namespace dovetail::train {

struct MemorySection;
struct RunConfig;

/// Throws UserError if [memory] is invalid. Also throws if it has a budget and the run's steps are
/// not all alike, and names the cause.
void check_memory(const RunConfig& config);

/// Makes the file-backed memory of the steps before there is a plan. Returns null without a budget
/// or a folder. Call it before allocating anything that a planned step uses.
std::shared_ptr<plan::PagedAllocations> paged_until_there_is_a_plan(const MemorySection& memory);

/// Returns the valid values of memory.allow.
std::vector<std::string> memory_techniques();

/// Returns the options of a planned step that [memory] asks for.
PlannedStep::Options planned_step_options(const MemorySection& memory);

}  // namespace dovetail::train
