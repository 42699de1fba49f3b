#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace dovetail::train {

/// Returns float64 sums of squares of the gradients' pieces, in order (ops/adamw.h). The result is
/// one tensor. In a recorded step it is one tensor per gradient, each from its own operation. A
/// memory plan can then offload or recompute each gradient separately.
std::vector<at::Tensor> squares_of(const std::vector<at::Tensor>& gradients);

/// Copies float64 scalars or vectors to the CPU, with a single read for all that are on a GPU.
/// Undefined tensors stay undefined.
std::vector<at::Tensor> read_together(std::span<const at::Tensor> values);

/// Adds up all values of `squares`, CPU tensors, in order. The result has the same bits whether
/// `squares` is one tensor or one per gradient.
double sum_of_pieces(std::span<const at::Tensor> squares);

/// Returns the factor that scales a gradient of global norm `norm` down to `max_norm`. Returns 1 if
/// the norm is not above it. `max_norm` 0: no clipping.
double clip_factor(double norm, double max_norm);

}  // namespace dovetail::train
