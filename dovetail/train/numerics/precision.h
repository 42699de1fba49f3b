#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "dovetail/comm/group.h"

namespace dovetail {

/// In which dtype a run computes, and why. Recipes that quantize Linears compute all else in
/// bfloat16.
struct Precision {
  at::ScalarType compute = at::kFloat;
  std::string recipe;  ///< as asked: "auto" or a name
  std::string name;    ///< as chosen: "fp32", "bf16", "fp64", "mxfp8", ...
  std::string
      reason;  ///< in words for the log and the report; empty if there was nothing to choose
  double peak_flops =
      0;  ///< measured FLOP/s of matrix products in `compute` on one rank; 0: not measured (fp64)
};

/// BF16 is taken when its matrix products are at least this much faster than FP32's: a training
/// step has other work, which casts and FP32 masters make no faster.
inline constexpr double kMinBFloat16Gain = 1.25;

/// Decides on rank 0, for all ranks. `kept` is what a resumed run computed in so far: "auto" keeps
/// it, and asking for another is a UserError.
Precision resolve_precision(const std::string& recipe, const std::optional<std::string>& kept,
                            c10::Device device, Group& group);

}  // namespace dovetail
