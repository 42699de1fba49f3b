#pragma once

#include "dovetail/base/once_differentiable.h"

namespace dovetail::moe {

/// Remedy of operations that PyTorch's operations compute in float64.
inline constexpr const char* kInFloat64 =
    "in float64, without torch.compile, PyTorch computes it and has one";

inline constexpr OnceDifferentiable kGroupedLinear = {
    "grouped_linear", "use torch.nn.functional.linear on the rows of each group"};

}  // namespace dovetail::moe
