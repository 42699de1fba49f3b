#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dovetail::moe {

/// Linear layer with another weight for each group of rows (expert): y[r] = weight[e] x[r] +
/// bias[e] for the rows r of group e.
///
/// x: (R, in), rows sorted by group. weight: (E, out, in). count: (E) int64 on the CPU, number of
/// rows of each group, with sum R. bias: (E, out) or undefined. y: (R, out). One call of
/// `ops::gemm_group` runs all products, without padding. x, weight and bias are on one device.
/// Differentiable in x, weight and bias. Throws UserError naming the tensor.
at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& count,
                          const at::Tensor& bias = {});

/// Computes the same with a separate weight tensor (out, in) for each group. The number of rows of
/// group e is count[e]. Each bias[e] is (out), or `bias` is empty. Differentiable in x and all
/// weights and biases.
at::Tensor grouped_linear(const at::Tensor& x, at::TensorList weight,
                          const std::vector<int64_t>& count, at::TensorList bias = {});

}  // namespace dovetail::moe
