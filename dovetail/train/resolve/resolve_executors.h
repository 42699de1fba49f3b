#pragma once

#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/jobs/runtime.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/resolve/resolved_run.h"

namespace dovetail::train {

/// Throws UserError if run.device is neither a device nor a list of executors. Also throws if it is
/// a list that this run cannot use. docs/distributed.md lists the obstacles.
void check_executors(const RunConfig& config);

/// Returns the executors in run.device; empty if it names one device. The first one is the owner of
/// the weights. Throws UserError if the job has several ranks, or if there is no such GPU. Makes
/// the owner's GPU the current GPU of this thread.
std::vector<jobs::ExecutorSpec> resolve_executors(const RunConfig& config,
                                                  const comm::Group& group);

/// Returns the number of CPU threads of this thread's work in a run with `executors`: the owner's.
/// If the owner is a GPU, it is the number of cores that other executors leave, at least 1.
int owner_threads(const std::vector<jobs::ExecutorSpec>& executors, int cores);

/// Returns the estimated bytes of host memory for all executors but the owner. Each of them
/// computes `micro_batches` micro-batches. Requires resolve_precision_and_size.
int64_t executor_memory(const ResolvedRun& run, int64_t micro_batches);

/// Logs the executors, their memory, and a warning if their threads exceed the cores.
void log_executors(const ResolvedRun& run);

}  // namespace dovetail::train
