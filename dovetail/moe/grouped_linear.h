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

/// Checks the arguments of `grouped_linear`. Returns the numbers of rows of the groups.
std::vector<int64_t> checked_counts(const at::Tensor& x, const at::Tensor& weight,
                                    const at::Tensor& count, const at::Tensor& bias);

/// Gradients to compute.
struct GroupedWanted {
  bool x = true, weight = true, bias = false;
};
/// Returns the gradients of x, weight and bias of `grouped_linear` from dy (R, out). Gradients that
/// are not wanted may be undefined.
std::vector<at::Tensor> grouped_linear_gradients(const at::Tensor& dy, const at::Tensor& x,
                                                 const at::Tensor& weight,
                                                 const std::vector<int64_t>& count,
                                                 GroupedWanted wanted);

/// Computes the same with a separate weight tensor (out, in) for each group. The number of rows of
/// group e is count[e]. Each bias[e] is (out), or `bias` is empty. Differentiable in x and all
/// weights and biases.
at::Tensor grouped_linear(const at::Tensor& x, at::TensorList weight,
                          const std::vector<int64_t>& count, at::TensorList bias = {});

}  // namespace dovetail::moe
