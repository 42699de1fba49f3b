#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail::ops {

enum class Activation { kSwiGlu, kGelu, kSquaredRelu };

/// Input of an activation: x (rows, width). For SwiGLU, x is (rows, 2 * width), and each row holds
/// gate, then up. All tensors are contiguous, in the number format `storage`.
struct ActivationProblem {
  Activation activation;
  Storage storage;
  int64_t rows, width;
  const void* x;
};

/// Computes y (rows, width), the activation of the input.
void activation_forward(const ActivationProblem& problem, void* y);
/// Computes dx, the gradient of x with the shape of x, given dy (rows, width).
void activation_backward(const ActivationProblem& problem, const void* dy, void* dx);

}  // namespace dovetail::ops
