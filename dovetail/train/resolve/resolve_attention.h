#pragma once

#include <optional>
#include <string>

#include "dovetail/comm/group.h"
#include "dovetail/train/resolve/resolved_run.h"

namespace dovetail::train {

/// Chooses the attention kernel for run.attention and makes the process use it. Rank 0 chooses for
/// all ranks; all call this together. Requires `precision` and `micro_batch` of `run`.
///
/// - "auto" in a new run measures both kernels with the shapes of the run. It takes cuDNN's if that
///   needs less than kMostOfFlash of flash attention's time.
/// - "auto" in a resumed run takes `kept`, since the kernels differ in the last bits.
/// - There is a choice only for bfloat16 on a GPU.
///
/// Throws UserError if run.attention names a kernel where there is no choice.
AttentionKernel resolve_attention(const ResolvedRun& run, const std::optional<std::string>& kept,
                                  comm::Group& group);

/// Maximum time of cuDNN's attention, divided by the time of flash attention, for which "auto"
/// takes cuDNN's. The margin keeps two runs on one card from different choices by noise.
inline constexpr double kMostOfFlash = 0.95;

}  // namespace dovetail::train
