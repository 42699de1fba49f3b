#pragma once

#include <ATen/core/Tensor.h>

namespace dovetail::moe {

/// y[r] = weight[e] x[r] + bias[e] for the rows r of group e: x (R, in), whose rows are sorted by group; weight (E,
/// out, in); count (E) int64 on the CPU, rows of each group, which add to R; bias (E, out) or undefined. y (R, out).
/// One pass of products without padding (`gemm_group`). Differentiable in x, weight and bias. Throws UserError naming
/// the tensor.
at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& count,
                          const at::Tensor& bias = {});

}  // namespace dovetail::moe
