#pragma once

#include <string>

#include "dovetail/comm/group.h"
#include "dovetail/train/resolve/resolve.h"

namespace dovetail::train {

/// Throws UserError naming the key if the config does not fit a vision model on `ranks` ranks. Also
/// throws for a memory plan on a GPU.
void check_vision(const ResolvedRun& run, int ranks);

/// Sets `precision`, `size` (parameters, FLOPs) and `memory` (estimated bytes) of `run`. The
/// precision is always fp32. All ranks call this together.
void resolve_vision_size(ResolvedRun& run, comm::Group& group);

/// Returns the beginning of summary_line: "unet 31 M parameters · 2 classes · 3 x 256 x 256 ·
/// fp32".
std::string vision_summary(const ResolvedRun& run);

}  // namespace dovetail::train
