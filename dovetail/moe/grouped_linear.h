#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dovetail::moe {

/// y[r] = weight[e] x[r] + bias[e] for the rows r of group e: x (R, in), whose rows are sorted by
/// group; weight (E, out, in); count (E) int64 on the CPU, rows of each group, which add to R; bias
/// (E, out) or undefined. y (R, out). One pass of products without padding (`gemm_group`), x,
/// weight and bias on one device. Differentiable in x, weight and bias. Throws UserError naming the
/// tensor.
at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& count,
                          const at::Tensor& bias = {});

/// The same of weights that are tensors of their own: weight[e] (out, in), one for each of `count`,
/// and bias[e] (out) or no biases. Differentiable in all of them.
at::Tensor grouped_linear(const at::Tensor& x, at::TensorList weight,
                          const std::vector<int64_t>& count, at::TensorList bias = {});

}  // namespace dovetail::moe
