#pragma once

#include <optional>
#include <string>

#include "dovetail/comm/group.h"

namespace dovetail::train {

struct ResolvedRun;

/// Attention kernel of a run on a GPU.
struct AttentionKernel {
  std::string name;    ///< "flash" or "cudnn"; empty: there is no choice
  std::string reason;  ///< measured times, for the log; empty without a measurement
};

/// Chooses the attention kernel for run.attention and makes the process use it. Rank 0 chooses for
/// all ranks; all call this together. "auto" measures both kernels with the shapes of the run, and
/// takes cuDNN's if it needs less than kMostOfFlash of flash attention's time. A resumed run goes
/// on with `kept`, since the kernels differ in the last bits. The choice exists only for bfloat16
/// on a GPU. Throws UserError if run.attention names a kernel elsewhere, or one that the GPU lacks.
AttentionKernel resolve_attention(const ResolvedRun& run, const std::optional<std::string>& kept,
                                  comm::Group& group);

/// Maximum time of cuDNN's attention, divided by that of flash attention, for which "auto" takes
/// cuDNN's. The margin keeps two runs on one card from different choices by noise.
inline constexpr double kMostOfFlash = 0.95;

}  // namespace dovetail::train
