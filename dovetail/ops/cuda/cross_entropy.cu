#include <cfloat>
#include <cmath>
#include <type_traits>

#include "dovetail/ops/cuda/launch.h"
#include "dovetail/ops/cuda/values.cuh"

namespace dovetail::ops::cuda {
namespace {

constexpr int kThreads = 512, kAtOnce = 4;  // kAtOnce: loads of a thread in flight

/// sum(exp(x)), represented as exp(most) * sum.
struct Exponentials {
  float most = -FLT_MAX, sum = 0;
};

__device__ Exponentials joined(Exponentials a, Exponentials b) {
  const float most = fmaxf(a.most, b.most);
  return {most, a.sum * __expf(a.most - most) + b.sum * __expf(b.most - most)};
}

/// Joins x over the block in a fixed order. The result is the same for every thread.
__device__ Exponentials block_joined(Exponentials x) {
  __shared__ Exponentials warps[kThreads / 32];
  // Both threads of a pair take the value of the lower thread first, so they get the same bits.
  for (int offset = 16; offset > 0; offset /= 2) {
    const Exponentials other = {__shfl_xor_sync(~0u, x.most, offset),
                                __shfl_xor_sync(~0u, x.sum, offset)};
    x = (threadIdx.x & offset) == 0 ? joined(x, other) : joined(other, x);
  }
  if (threadIdx.x % 32 == 0) {
    warps[threadIdx.x / 32].most = x.most;
    warps[threadIdx.x / 32].sum = x.sum;
  }
  __syncthreads();
  x = warps[0];
  for (int w = 1; w < kThreads / 32; ++w) x = joined(x, warps[w]);
  return x;
}

template <int kStep, class T>
__device__ void fold(Exponentials& to, const T* x) {
  float most = to.most;
#pragma unroll
  for (int j = 0; j < kStep; ++j) most = fmaxf(most, to_float(x[j]));
  float sum = to.sum * __expf(to.most - most);
#pragma unroll
  for (int j = 0; j < kStep; ++j) sum += __expf(to_float(x[j]) - most);
  to = {most, sum};
}

/// Computes one row per block. kWide: reads the row in parts of 16 bytes. kKept: the row stays in
/// shared memory between its two passes. Reads and writes the logits once: 1.1 ms for 16384 x 50304
/// of bfloat16 at 3 TB/s.
template <class T, bool kWide, bool kKept>
__global__ __launch_bounds__(kThreads) void cross_entropy_kernel(CrossEntropyProblem p) {
  using Part = std::conditional_t<kWide, uint4, T>;
  constexpr int kStep = sizeof(Part) / sizeof(T);
  extern __shared__ uint4 shared[];
  Part* kept = reinterpret_cast<Part*>(shared);
  T* logits = static_cast<T*>(p.logits) + blockIdx.x * p.vocab;
  Part* row = reinterpret_cast<Part*>(logits);
  const int parts = static_cast<int>(p.vocab / kStep);
  const int64_t target = p.targets[blockIdx.x];
  const bool ignored = target == kIgnoredTarget, inside = target >= 0 && target < p.vocab;
  if (ignored) {
    if (threadIdx.x == 0) p.losses[blockIdx.x] = 0;
    if (p.gradient)
      for (int i = threadIdx.x; i < parts; i += kThreads) row[i] = Part{};
    return;
  }
  // A target outside of the vocabulary makes loss and gradient NaN, since a kernel cannot throw.
  const float of_target = inside ? to_float(logits[target]) : NAN;
  Exponentials mine;
  for (int first = threadIdx.x; first < parts; first += kAtOnce * kThreads) {
    Part loaded[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u)
      if (first + u * kThreads < parts) loaded[u] = row[first + u * kThreads];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (first + u * kThreads >= parts) break;
      if constexpr (kKept) kept[first + u * kThreads] = loaded[u];
      fold<kStep>(mine, reinterpret_cast<const T*>(&loaded[u]));
    }
  }
  // Also a barrier: all threads have read the target's logit.
  const Exponentials all = block_joined(mine);
  if (threadIdx.x == 0) p.losses[blockIdx.x] = logf(all.sum) + all.most - of_target;
  if (!p.gradient) return;
  const float scale = inside ? 1.0f / all.sum : NAN;
  for (int i = threadIdx.x; i < parts; i += kThreads) {
    const Part from = kKept ? kept[i] : row[i];
    const T* x = reinterpret_cast<const T*>(&from);
    const int64_t hit = target - int64_t{i} * kStep;
    Part to;
#pragma unroll
    for (int j = 0; j < kStep; ++j)
      reinterpret_cast<T*>(&to)[j] =
          from_float<T>(__expf(to_float(x[j]) - all.most) * scale - (j == hit ? 1.0f : 0.0f));
    row[i] = to;
  }
}

int most_shared_bytes() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes - 1024;  // minus the shared memory that a block needs in addition to the row
}

template <class T, bool kWide>
void launch(const CrossEntropyProblem& p, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(p.rows);
  const int64_t bytes = p.vocab * static_cast<int64_t>(sizeof(T));
  if (p.gradient && bytes <= most_shared_bytes()) {
    const auto kernel = cross_entropy_kernel<T, kWide, true>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(bytes));
    kernel<<<rows, kThreads, static_cast<size_t>(bytes), stream>>>(p);
  } else {
    cross_entropy_kernel<T, kWide, false><<<rows, kThreads, 0, stream>>>(p);
  }
}

}  // namespace

void cross_entropy(const CrossEntropyProblem& p, cudaStream_t stream) {
  with_storage(p.storage, [&](auto example) {
    using T = decltype(example);
    if (p.vocab % Values<T>::kCount == 0 && on_16_bytes(p.logits)) {
      launch<T, true>(p, stream);
    } else {
      launch<T, false>(p, stream);
    }
  });
}

}  // namespace dovetail::ops::cuda
