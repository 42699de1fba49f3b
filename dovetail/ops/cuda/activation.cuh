#pragma once

#include <cstdint>

#include "dovetail/ops/activation_simd.h"

namespace dovetail::ops::cuda {

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

/// Returns 2 u, with u the argument of tanh in GELU. The tanh form of GELU is 0.5 x (1 + tanh(u)),
/// and so x sigmoid(2 u).
__device__ inline float gelu_argument(float x) {
  constexpr float k = 0.7978845608028654f, c = 0.044715f;  // k = sqrt(2 / pi)
  return 2.0f * k * (x + c * x * x * x);
}

/// Returns y of one element; only SwiGLU uses `up`.
template <Activation kActivation>
__device__ float activated(float x, float up) {
  if constexpr (kActivation == Activation::kSwiGlu) return x * sigmoid(x) * up;
  if constexpr (kActivation == Activation::kSquaredRelu) return x > 0 ? x * x : 0.0f;
  return x * sigmoid(gelu_argument(x));
}

/// Returns the index of the x of element i of y (rows, width). For SwiGLU it is the index of the
/// gate; the up value is `width` elements after it.
template <Activation kActivation>
__device__ int64_t input_index(int64_t i, int64_t width) {
  return kActivation == Activation::kSwiGlu ? i / width * 2 * width + i % width : i;
}

}  // namespace dovetail::ops::cuda
