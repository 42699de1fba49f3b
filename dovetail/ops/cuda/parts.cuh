#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "dovetail/ops/cuda/block.cuh"
#include "dovetail/ops/cuda/values.cuh"

/// Column sums of a matrix in two steps. First, its rows are divided into parts, and a thread block
/// sums each part. Second, the sums of the parts are added, in an order that depends only on the
/// number of parts.
namespace dovetail::ops::cuda {

inline constexpr int kJoinWarps = 8;

/// Second step: computes first[column] = sum over the parts of partial[part][column]. If the grid
/// has a second row, that row sums the next `parts` parts of `partial` into `second`. A block sums
/// 32 columns, and its warps share the parts.
template <class T>
__global__ void __launch_bounds__(kWarp* kJoinWarps)
    join_parts_kernel(const float* __restrict__ partial, int64_t parts, int64_t columns,
                      T* __restrict__ first, T* __restrict__ second) {
  __shared__ float sums[kJoinWarps][kWarp];
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  const float* from = partial + int64_t{blockIdx.y} * parts * columns;
  float sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (int64_t part = threadIdx.y; part < parts; part += kJoinWarps)
      sum += from[part * columns + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
  for (int w = 1; w < kJoinWarps; ++w) sum += sums[w][threadIdx.x];
  (blockIdx.y == 0 ? first : second)[column] = from_float<T>(sum);
}

/// Launches `join_parts_kernel`. `second` may be null. Otherwise `partial` holds
/// [2][parts][columns]: first the parts for `first`, then those for `second`.
template <class T>
void join_parts(const float* partial, int64_t parts, int64_t columns, T* first, T* second,
                cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>((columns + kWarp - 1) / kWarp), second ? 2 : 1);
  join_parts_kernel<T>
      <<<blocks, dim3(kWarp, kJoinWarps), 0, stream>>>(partial, parts, columns, first, second);
}

}  // namespace dovetail::ops::cuda
