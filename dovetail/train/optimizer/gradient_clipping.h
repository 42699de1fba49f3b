#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace dovetail::train {

/// Returns sums of squares of the gradients, from which the global norm follows (sum_of_pieces).
/// Gradients are cut into pieces (ops/adamw.h). The result has one float64 value per piece, in
/// order.
///
/// - Outside a recording, the result is one tensor.
/// - While a step is recorded for a memory plan, the result is one tensor per gradient. A separate
///   operation computes each, so a plan can offload or recompute each gradient separately.
std::vector<at::Tensor> squares_of(const std::vector<at::Tensor>& gradients);

/// Returns `values`, float64 scalars or vectors, on the CPU. All values on a GPU are copied at
/// once. Undefined tensors stay undefined.
std::vector<at::Tensor> read_together(std::span<const at::Tensor> values);

/// Returns the sum of all values of `squares`, a result of squares_of on the CPU, added in order.
/// The sum has the same bits for one tensor as for one tensor per gradient.
double sum_of_pieces(std::span<const at::Tensor> squares);

/// Returns the factor that scales a gradient of global norm `norm` down to norm `max_norm`. Returns
/// 1 if the norm is not above it, or if `max_norm` is 0 (no clipping).
double clip_factor(double norm, double max_norm);

}  // namespace dovetail::train
