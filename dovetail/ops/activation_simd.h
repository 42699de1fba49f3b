#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail::ops {

enum class Activation { kSwiGlu, kGelu, kSquaredRelu };

/// Input of an activation: x (rows, width), or (rows, 2 * width) for SwiGLU, which holds gate, then
/// up. All tensors are contiguous.
struct ActivationProblem {
  Activation activation;
  Storage storage;
  int64_t rows, width;
  const void* x;
};

/// Writes y (rows, width).
void activation_forward(const ActivationProblem& problem, void* y);
/// Writes dx, with the shape of x; dy is (rows, width).
void activation_backward(const ActivationProblem& problem, const void* dy, void* dx);

}  // namespace dovetail::ops
