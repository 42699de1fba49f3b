#pragma once

#include "dovetail/base/error.h"
#include "dovetail/base/gpu.h"
#include "dovetail/train/resolve/resolved_run.h"

namespace dovetail::train {

/// Returns the error of a run that found no memory on its GPU. The message lists the estimated
/// parts of a step and what other programs hold. The help names the largest train.micro_batch whose
/// estimate fits, or other ways if not even one sample fits. `now` is the GPU's memory after the
/// failure. Requires resolve_precision_and_size.
UserError out_of_memory(const ResolvedRun& run, const GpuMemory& now);

}  // namespace dovetail::train
