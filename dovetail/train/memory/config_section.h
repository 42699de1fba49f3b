#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dovetail/plan/step/planned_step.h"

namespace dovetail::train {

struct MemorySection;
struct RunConfig;

/// Throws UserError if [memory] is invalid. With a budget, also throws if steps of the run may
/// differ in shapes or in exchanges between ranks. The error names the cause.
void check_memory(const RunConfig& config);

/// Returns a scope in which large tensors are allocated in a file of memory.folder
/// (plan::PagedAllocations). It is for the steps before a plan exists, which may need more memory
/// than the machine has. Returns null without a budget or a folder. Call it before allocating
/// anything that a planned step uses.
std::shared_ptr<plan::PagedAllocations> paged_until_there_is_a_plan(const MemorySection& memory);

/// Throws UserError if a budget cannot be kept on `device`, or if [memory] has keys that do nothing
/// there.
void check_memory_on(const RunConfig& config, c10::Device device);

/// Converts [memory] to the options of a PlannedStep on `device`.
plan::PlannedStep::Options planned_step_options(const MemorySection& memory, c10::Device device);

}  // namespace dovetail::train
