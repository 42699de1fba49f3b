#include <type_traits>

#include "dovetail/embedding/cuda/launch.h"
#include "dovetail/embedding/cuda/row.cuh"

namespace dovetail::embedding::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) check_kernel(CudaCheckProblem p) {
  const int64_t bag = int64_t{blockIdx.x} * kThreads + threadIdx.x,
                bags = p.features * p.batch.samples;
  if (bag > bags) return;
  const int64_t begin = p.batch.offsets[bag];
  if (bag == bags) {  // also runs without any bags
    if (begin != p.batch.ids || p.batch.offsets[0] != 0) *p.bad = 1;
    return;
  }
  const int64_t end = p.batch.offsets[bag + 1];
  bool good = begin >= 0 && begin <= end && end <= p.batch.ids;
  const auto rows = static_cast<uint64_t>(p.rows[bag / p.batch.samples]);
  for (int64_t i = begin; good && rows != 0 && i < end; ++i)
    good = static_cast<uint64_t>(p.batch.values[i]) < rows;
  if (!good) *p.bad = 1;
}

/// One team of lanes for each bag.
template <class Row, int kVectors>
__global__ void __launch_bounds__(kThreads)
    pool_kernel(CudaPoolProblem p, int lanes, bool aligned) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x, bag = thread / lanes;
  if (bag >= p.pack.num_features * p.batch.samples) return;
  const int lane = static_cast<int>(thread % lanes);
  const CudaFeature feature = p.pack.features[bag / p.batch.samples];
  const CudaTable table = p.pack.tables[feature.table];
  const int64_t begin = p.batch.offsets[bag], end = p.batch.offsets[bag + 1];
  const bool whole = table.dim % kVector == 0;
  float4 sum[kVectors] = {};
#pragma unroll 4
  for (int64_t i = begin; i < end; ++i) {
    const float weight = p.batch.weights == nullptr ? 1.0f : p.batch.weights[i];
    const Row* row = reinterpret_cast<const Row*>(table.rows + p.batch.values[i] * table.row_bytes);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = kVector * (lane + int64_t{v} * lanes);
      add_scaled(weight, load_four(row + column, table.dim - column, whole), sum[v]);
    }
  }
  const float mean = feature.mean && end > begin ? 1.0f / static_cast<float>(end - begin) : 1.0f;
  float* y = p.y + bag % p.batch.samples * p.columns + feature.column;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t column = kVector * (lane + int64_t{v} * lanes);
    const float4 x = {sum[v].x * mean, sum[v].y * mean, sum[v].z * mean, sum[v].w * mean};
    store_four(x, y + column, table.dim - column,
               whole && aligned && feature.column % kVector == 0);
  }
}

}  // namespace

void check(const CudaCheckProblem& p, cudaStream_t stream) {
  check_kernel<<<blocks_for(p.features * p.batch.samples + 1, INT32_MAX), kThreads, 0, stream>>>(p);
}

void pool(const CudaPoolProblem& p, cudaStream_t stream) {
  const int lanes = team_of(p.pack.widest).lanes;
  const bool aligned =
      reinterpret_cast<uintptr_t>(p.y) % sizeof(float4) == 0 && p.columns % kVector == 0;
  with_rows(p.pack, [&](auto example, auto vectors) {
    pool_kernel<decltype(example), decltype(vectors)::value>
        <<<blocks_for(p.pack.num_features * p.batch.samples * lanes, INT32_MAX), kThreads, 0,
           stream>>>(p, lanes, aligned);
  });
}

}  // namespace dovetail::embedding::cuda
