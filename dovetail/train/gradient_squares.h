#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace dovetail {

/// Sums of squares of the pieces of all gradients in order (ops/adamw.h), in one tensor; in a recorded step in one for
/// each gradient, by an operation of its own, for a plan moves each gradient on its own.
std::vector<at::Tensor> squares_of(const std::vector<at::Tensor>& gradients);

/// All of them added up in order: the same bits either way.
double sum_of_pieces(std::span<const at::Tensor> squares);

}  // namespace dovetail
