#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace dovetail {

/// Sums of squares of the pieces of all gradients in order (ops/adamw.h), in one tensor; in a
/// recorded step in one for each gradient, by an operation of its own, for a plan moves each
/// gradient on its own.
std::vector<at::Tensor> squares_of(const std::vector<at::Tensor>& gradients);

/// Float64 scalars or vectors on the CPU, undefined ones as they are: one read for all that lie on
/// a GPU.
std::vector<at::Tensor> read_together(std::span<const at::Tensor> values);

/// All of them, on the CPU, added up in order: the same bits either way.
double sum_of_pieces(std::span<const at::Tensor> squares);

/// Factor that scales a gradient of global norm `norm` down to `max_norm`; 1 if the norm is not
/// above it, or if `max_norm` is 0 (no clipping).
double clip_factor(double norm, double max_norm);

}  // namespace dovetail
