#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dovetail::moe {

/// Computes y[r] = weight[e] x[r] + bias[e] for the rows r of each group e. x: (R, in), rows sorted
/// by group. weight: (E, out, in). count: (E) int64 on the CPU, number of rows of each group, with
/// sum R. bias: (E, out) or undefined. y: (R, out). All products run as one unpadded group
/// (`gemm_group`). x, weight and bias are on one device. Differentiable in x, weight and bias.
/// Throws UserError naming the tensor.
at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& count,
                          const at::Tensor& bias = {});

/// Same product with a separate weight tensor for each group. Each weight[e] is (out, in), one for
/// each element of `count`. Each bias[e] is (out), or `bias` is empty. Differentiable in all of
/// them.
at::Tensor grouped_linear(const at::Tensor& x, at::TensorList weight,
                          const std::vector<int64_t>& count, at::TensorList bias = {});

}  // namespace dovetail::moe
