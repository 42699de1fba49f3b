#pragma once

#include <cstdint>

#include "dovetail/ops/activation_simd.h"
#include "dovetail/ops/cuda/values.cuh"

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

/// Reader of a matrix that is an activation of the matrix in memory.
template <Activation kValue>
struct ActivationOf {
  /// Returns 8 neighbours of the activation of x, as bfloat16 bits. x is bfloat16 and aligned to 16
  /// bytes. `index` is the first neighbour's index in the result (rows, cols).
  static __device__ uint4 load(const void* x, int64_t index, int64_t cols) {
    constexpr bool kGated = kValue == Activation::kSwiGlu;
    const auto* from = static_cast<const __nv_bfloat16*>(x) + input_index<kValue>(index, cols);
    Values<__nv_bfloat16> values = load_values(from), up;
    if constexpr (kGated) up = load_values(from + cols);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      values.v[j] = activated<kValue>(values.v[j], kGated ? up.v[j] : 0.0f);
    uint4 bits;
    store_values(values, reinterpret_cast<__nv_bfloat16*>(&bits));
    return bits;
  }
};

/// Calls f with `activation` as a constant, f.operator()<kActivation>().
template <class F>
void with_activation(Activation activation, F f) {
  switch (activation) {
    case Activation::kSwiGlu:
      return f.template operator()<Activation::kSwiGlu>();
    case Activation::kGelu:
      return f.template operator()<Activation::kGelu>();
    case Activation::kSquaredRelu:
      return f.template operator()<Activation::kSquaredRelu>();
  }
}

}  // namespace dovetail::ops::cuda
