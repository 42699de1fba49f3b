#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail {

enum class Activation { kSwiGlu, kGelu, kSquaredRelu };

/// x (rows, width), or (rows, 2 * width) for SwiGLU: gate, then up. All contiguous.
struct ActivationProblem {
  Activation activation;
  Storage storage;
  int64_t rows, width;
  const void* x;
};

void activation_forward(const ActivationProblem& problem, void* y);  ///< y (rows, width)
void activation_backward(const ActivationProblem& problem, const void* dy,
                         void* dx);  ///< dx like x

}  // namespace dovetail
