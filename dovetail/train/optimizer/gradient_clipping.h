#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace dovetail::train {

/// Returns sums of squares of the gradients, float64, from which the global norm follows. Gradients
/// are cut into pieces (ops/adamw.h); each value is the sum of one piece, in order. The result is
/// one tensor. While a step is recorded for a memory plan, it is one tensor per gradient, each from
/// its own operation. A plan can then offload or recompute each gradient separately.
std::vector<at::Tensor> squares_of(const std::vector<at::Tensor>& gradients);

/// Copies float64 scalars or vectors to the CPU, with a single copy for all that are on a GPU.
/// Undefined tensors stay undefined.
std::vector<at::Tensor> read_together(std::span<const at::Tensor> values);

/// Returns the sum of all values of `squares`, a result of squares_of on the CPU, added in order.
/// The sum has the same bits whether `squares` is one tensor or one per gradient.
double sum_of_pieces(std::span<const at::Tensor> squares);

/// Returns the factor that scales a gradient of global norm `norm` down to norm `max_norm`. Returns
/// 1 if the norm is not above it, or if `max_norm` is 0 (no clipping).
double clip_factor(double norm, double max_norm);

}  // namespace dovetail::train
