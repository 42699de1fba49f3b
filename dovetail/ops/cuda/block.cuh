#pragma once

namespace dovetail::ops::cuda {

inline constexpr int kWarp = 32;

/// Returns the sum of `x` over the threads of a warp, the same for every thread.
template <class T>
__device__ T warp_sum(T x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

/// Returns the sum of `x` over a block of kThreads threads, the same for every thread. The order of
/// additions is fixed.
template <int kThreads>
__device__ float block_sum(float x) {
  __shared__ float warps[kThreads / kWarp];
  x = warp_sum(x);
  __syncthreads();  // the previous sum has been read
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) sum += warps[w];
  return sum;
}

}  // namespace dovetail::ops::cuda
