#include <algorithm>

#include "dovetail/ops/cuda/activation.cuh"
#include "dovetail/ops/cuda/launch.h"
#include "dovetail/ops/cuda/values.cuh"

namespace dovetail::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 16;

/// Returns dx of one element; SwiGLU also writes the gradient of `up`.
template <Activation kActivation>
__device__ float gradient(float x, float up, float dy, float& dup) {
  if constexpr (kActivation == Activation::kSwiGlu) {
    const float s = sigmoid(x);
    dup = dy * x * s;
    return dy * up * s * (1.0f + x * (1.0f - s));
  }
  if constexpr (kActivation == Activation::kSquaredRelu) return x > 0 ? 2.0f * x * dy : 0.0f;
  constexpr float k = 0.7978845608028654f, c = 0.044715f;
  const float s = sigmoid(gelu_argument(x));
  return dy * (s + x * (s * (1.0f - s)) * 2.0f * k * (1.0f + 3.0f * c * x * x));
}

/// Computes an activation or its gradient. kWide: accesses 16 bytes at a time, which must divide
/// the width.
template <Activation kActivation, class T, bool kWide, bool kForward>
__global__ void __launch_bounds__(kThreads)
    activation_kernel(const T* __restrict__ x, const T* __restrict__ dy, T* __restrict__ out,
                      int64_t count, int64_t width) {
  constexpr int kStep = kWide ? Values<T>::kCount : 1;
  constexpr bool kGated = kActivation == Activation::kSwiGlu;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x * kStep;
  for (int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kStep; i < count;
       i += stride) {
    const int64_t at = input_index<kActivation>(i, width);
    Values<T> a, up, d, dup;
    if constexpr (kWide) {
      a = load_values(x + at);
      if constexpr (kGated) up = load_values(x + at + width);
      if constexpr (!kForward) d = load_values(dy + i);
    } else {
      a.v[0] = to_float(x[at]);
      if constexpr (kGated) up.v[0] = to_float(x[at + width]);
      if constexpr (!kForward) d.v[0] = to_float(dy[i]);
    }
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      const float u = kGated ? up.v[j] : 0.0f;
      a.v[j] = kForward ? activated<kActivation>(a.v[j], u)
                        : gradient<kActivation>(a.v[j], u, d.v[j], dup.v[j]);
    }
    const int64_t to = kForward ? i : at;
    if constexpr (kWide) {
      store_values(a, out + to);
      if constexpr (kGated && !kForward) store_values(dup, out + to + width);
    } else {
      out[to] = from_float<T>(a.v[0]);
      if constexpr (kGated && !kForward) out[to + width] = from_float<T>(dup.v[0]);
    }
  }
}

template <Activation kActivation, bool kForward>
void launch(const ActivationProblem& p, const void* dy, void* out, cudaStream_t stream) {
  with_storage(p.storage, [&](auto example) {
    using T = decltype(example);
    const int64_t count = p.rows * p.width;
    const bool wide = p.width % Values<T>::kCount == 0 && on_16_bytes(p.x) && on_16_bytes(out) &&
                      (kForward || on_16_bytes(dy));
    const int64_t pieces = wide ? count / Values<T>::kCount : count;
    const auto blocks =
        static_cast<unsigned>(std::min((pieces + kThreads - 1) / kThreads, kMaxBlocks));
    const auto kernel = wide ? activation_kernel<kActivation, T, true, kForward>
                             : activation_kernel<kActivation, T, false, kForward>;
    kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(p.x), static_cast<const T*>(dy),
                                            static_cast<T*>(out), count, p.width);
  });
}

}  // namespace

void activation_forward(const ActivationProblem& problem, void* y, cudaStream_t stream) {
  with_activation(problem.activation, [&]<Activation kActivation>() {
    launch<kActivation, true>(problem, nullptr, y, stream);
  });
}

void activation_backward(const ActivationProblem& problem, const void* dy, void* dx,
                         cudaStream_t stream) {
  with_activation(problem.activation, [&]<Activation kActivation>() {
    launch<kActivation, false>(problem, dy, dx, stream);
  });
}

}  // namespace dovetail::ops::cuda
