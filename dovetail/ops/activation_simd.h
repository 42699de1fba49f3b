#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail::ops {

enum class Activation { kSwiGlu, kGelu, kSquaredRelu };

/// Input of an activation: x (rows, width). For SwiGLU it is (rows, 2 * width), and each row holds
/// gate, then up. All tensors are contiguous, in `storage`.
struct ActivationProblem {
  Activation activation;
  Storage storage;
  int64_t rows, width;
  const void* x;
};

/// Writes the activation y (rows, width) of the input.
void activation_forward(const ActivationProblem& problem, void* y);
/// Writes dx, with the shape of x, given dy (rows, width).
void activation_backward(const ActivationProblem& problem, const void* dy, void* dx);

}  // namespace dovetail::ops
