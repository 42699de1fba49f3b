#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "dovetail/comm/group.h"

namespace dovetail::train {

/// Dtype in which a run computes, and the reason. Recipes that quantize Linears compute everything
/// else in bfloat16.
struct Precision {
  at::ScalarType compute = at::kFloat;
  std::string recipe;  ///< recipe of the config: "auto" or a name
  std::string name;    ///< recipe in use: "fp32", "bf16", "fp64", "mxfp8", ...
  /// Reason for the log and the report; empty if there was no choice.
  std::string reason;
  /// Measured FLOP/s of matrix products in `compute` on one rank; 0: not measured (fp64).
  double peak_flops = 0;
};

/// Minimum ratio of BF16's to FP32's matrix product speed for which "auto" chooses BF16. Casts and
/// FP32 masters do not get faster, so a smaller gain does not pay.
inline constexpr double kMinBFloat16Gain = 1.25;

/// Chooses the precision on rank 0, for all ranks. `kept` is the precision of a resumed run. "auto"
/// keeps it; another recipe throws UserError.
Precision resolve_precision(const std::string& recipe, const std::optional<std::string>& kept,
                            c10::Device device, comm::Group& group);

}  // namespace dovetail::train
