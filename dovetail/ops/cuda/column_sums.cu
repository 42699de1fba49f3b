#include <algorithm>

#include "dovetail/ops/cuda/launch.h"
#include "dovetail/ops/cuda/parts.cuh"
#include "dovetail/ops/cuda/values.cuh"

namespace dovetail::ops::cuda {
namespace {

constexpr int kWarps = 8, kAtOnce = 4;  // kAtOnce: rows of a warp in flight
constexpr int64_t kRowsPerPart = 128, kMaxParts = 512;

/// Computes partial[part][column], the sums over the rows of each part. A warp reads 32 vectors of
/// a row, and the warps of a block share the rows of a part. kWide: a vector has 16 bytes, else one
/// element. Reads x once: 0.034 ms for 16384 x 3072 of bfloat16 at 3 TB/s.
template <class T, bool kWide>
__global__ void __launch_bounds__(kWarp* kWarps)
    part_kernel(const T* __restrict__ x, int64_t rows, int64_t columns, int64_t rows_per_part,
                float* __restrict__ partial) {
  constexpr int kCount = kWide ? Values<T>::kCount : 1;
  __shared__ float sums[kWarps][kWarp * kCount];
  const int64_t first = (int64_t{blockIdx.x} * kWarp + threadIdx.x) * kCount;
  const int64_t begin = blockIdx.y * rows_per_part, end = min(rows, begin + rows_per_part);
  float sum[kCount] = {};
  if (first < columns) {
    for (int64_t row = begin + threadIdx.y; row < end; row += kWarps * kAtOnce) {
      Values<T> loaded[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int64_t at = row + u * kWarps;
        if (at >= end) continue;
        if constexpr (kWide) {
          loaded[u] = load_values(x + at * columns + first);
        } else {
          loaded[u].v[0] = to_float(x[at * columns + first]);
        }
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if (row + u * kWarps >= end) break;
#pragma unroll
        for (int j = 0; j < kCount; ++j) sum[j] += loaded[u].v[j];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) sums[threadIdx.y][threadIdx.x * kCount + j] = sum[j];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y) * kWarp + static_cast<int>(threadIdx.x);
       i < kWarp * kCount; i += kWarp * kWarps) {
    const int64_t column = int64_t{blockIdx.x} * kWarp * kCount + i;
    if (column >= columns) continue;
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += sums[w][i];
    partial[blockIdx.y * columns + column] = total;
  }
}

}  // namespace

int64_t column_sum_parts(int64_t rows) {
  return std::clamp((rows + kRowsPerPart - 1) / kRowsPerPart, int64_t{1}, kMaxParts);
}

void column_sums(Storage storage, const void* x, int64_t rows, int64_t columns, float* partial,
                 void* to, cudaStream_t stream) {
  const int64_t parts = column_sum_parts(rows), rows_per_part = (rows + parts - 1) / parts;
  const dim3 threads(kWarp, kWarps);
  with_storage(storage, [&](auto example) {
    using T = decltype(example);
    const bool wide = columns % Values<T>::kCount == 0 && on_16_bytes(x);
    const int64_t at_once = kWarp * (wide ? Values<T>::kCount : 1);
    const dim3 blocks(static_cast<unsigned>((columns + at_once - 1) / at_once),
                      static_cast<unsigned>(parts));
    const auto kernel = wide ? part_kernel<T, true> : part_kernel<T, false>;
    kernel<<<blocks, threads, 0, stream>>>(static_cast<const T*>(x), rows, columns, rows_per_part,
                                           partial);
    join_parts<T>(partial, parts, columns, static_cast<T*>(to), nullptr, stream);
  });
}

}  // namespace dovetail::ops::cuda
