#include <type_traits>

#include "dovetail/embedding/cuda/launch.h"
#include "dovetail/embedding/cuda/row.cuh"
#include "dovetail/ops/cuda/queue.cuh"

// Roofline of pool_kernel: ids, offsets and distinct rows are read once. The L2 cache holds rows
// that occur again. Pooled rows are written once. At 26 tables of 64 columns and 65,536 samples of
// one id: 548 MB, 0.18 ms at 3.0 TB/s. The ids of a bag and its row are dependent loads. So a team
// has the rows of kBags bags in flight.
//
// tests/embedding/kernels_test.cpp compiles this file for a CPU.

namespace dovetail::embedding::cuda {
#ifdef __CUDACC__
using ops::cuda::queue;
#endif
namespace {

__global__ void __launch_bounds__(kThreads) check_kernel(CudaCheckProblem p) {
  const int64_t samples = p.batch.samples;
  const int64_t sample = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (sample == 0 && blockIdx.y == 0 &&
      (p.batch.offsets[0] != 0 || p.batch.offsets[p.features * samples] != p.batch.ids))
    *p.bad = 1;
  if (sample >= samples) return;
  for (int64_t f = blockIdx.y; f < p.features; f += gridDim.y) {
    const int64_t* offsets = p.batch.offsets + f * samples + sample;
    const int64_t begin = offsets[0], end = offsets[1];
    bool good = begin >= 0 && begin <= end && end <= p.batch.ids;
    const auto rows = static_cast<uint64_t>(p.rows[f]);
    for (int64_t i = begin; good && rows != 0 && i < end; ++i)
      good = static_cast<uint64_t>(p.batch.values[i]) < rows;
    if (!good) *p.bad = 1;
  }
}

/// Table, as a team of lanes reads it.
template <class Row>
struct RowsOf {
  const char* rows;
  int64_t row_bytes;
  uint64_t count;
  int dim, lane, lanes;
  bool whole;

  /// Returns vector v of row `id`; zeros for an id outside of the table.
  __device__ float4 load(int64_t id, int v) const {
    const int column = kVector * (lane + v * lanes);
    if (static_cast<uint64_t>(id) >= count) return {0, 0, 0, 0};
    return load_four(reinterpret_cast<const Row*>(rows + id * row_bytes) + column, dim - column,
                     whole);
  }
};

/// Ids of kBags bags, one of each, with their weights. -1 stands for a bag that has no more ids.
template <int kBags>
struct NextIds {
  int64_t id[kBags];
  float weight[kBags];
  bool any;
};

/// Loads values[at[k]] if at[k] < end[k].
template <int kBags>
__device__ NextIds<kBags> ids_at(const CudaBatch& batch, const int64_t (&at)[kBags],
                                 const int64_t (&end)[kBags]) {
  NextIds<kBags> ids;
  ids.any = false;
#pragma unroll
  for (int k = 0; k < kBags; ++k) {
    const bool there = at[k] < end[k];
    ids.id[k] = there ? batch.values[at[k]] : -1;
    ids.weight[k] = there && batch.weights != nullptr ? batch.weights[at[k]] : 1.0f;
    ids.any = ids.any || there;
  }
  return ids;
}

/// A team of lanes pools kBags bags of a feature, from consecutive samples. A block has one
/// feature. A batch that breaks the rules of check_jagged gives undefined pooled rows, but no
/// access outside of memory.
template <class Row, int kVectors, int kBags>
__global__ void __launch_bounds__(kThreads) pool_kernel(CudaPoolProblem p, bool aligned) {
  const int64_t samples = p.batch.samples;
  for (int64_t f = blockIdx.y; f < p.pack.num_features; f += gridDim.y) {
    const CudaFeature feature = p.pack.features[f];
    const CudaTable table = p.pack.tables[feature.table];
    const int lanes = lanes_of(static_cast<int>(table.dim)), dim = static_cast<int>(table.dim);
    const RowsOf<Row> rows = {table.rows,
                              table.row_bytes,
                              static_cast<uint64_t>(table.count),
                              dim,
                              static_cast<int>(threadIdx.x) & (lanes - 1),
                              lanes,
                              dim % kVector == 0};
    const int team = static_cast<int>(threadIdx.x) >> (__ffs(lanes) - 1);
    const int64_t first = (int64_t{blockIdx.x} * (kThreads >> (__ffs(lanes) - 1)) + team) * kBags;
    if (first >= samples) continue;
    const int bags = static_cast<int>(samples - first < kBags ? samples - first : kBags);
    const int64_t* offsets = p.batch.offsets + f * samples + first;
    int64_t next[kBags], end[kBags];
#pragma unroll
    for (int k = 0; k < kBags; ++k) {
      next[k] = offsets[k < bags ? k : bags];
      end[k] = offsets[k < bags ? k + 1 : bags];
      if (next[k] < 0 || end[k] > p.batch.ids) end[k] = next[k];
    }
    NextIds<kBags> ids = ids_at<kBags>(p.batch, next, end);
    float4 sum[kBags][kVectors] = {};
    while (ids.any) {
      int64_t after[kBags];
#pragma unroll
      for (int k = 0; k < kBags; ++k) after[k] = next[k] + 1;
      const NextIds<kBags> following = ids_at<kBags>(p.batch, after, end);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float4 x[kBags];
#pragma unroll
        for (int k = 0; k < kBags; ++k) x[k] = rows.load(ids.id[k], v);
#pragma unroll
        for (int k = 0; k < kBags; ++k)
          if (next[k] < end[k]) add_scaled(ids.weight[k], x[k], sum[k][v]);
      }
#pragma unroll
      for (int k = 0; k < kBags; ++k) next[k] = after[k];
      ids = following;
    }
#pragma unroll
    for (int k = 0; k < kBags; ++k) {
      if (k >= bags) continue;
      const int64_t size = end[k] - offsets[k];
      const float mean = feature.mean && size > 0 ? 1.0f / static_cast<float>(size) : 1.0f;
      float* y = p.y + (first + k) * p.columns + feature.column;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int column = kVector * (rows.lane + v * lanes);
        const float4 x = {sum[k][v].x * mean, sum[k][v].y * mean, sum[k][v].z * mean,
                          sum[k][v].w * mean};
        store_four(x, y + column, dim - column,
                   rows.whole && aligned && feature.column % kVector == 0);
      }
    }
  }
}

}  // namespace

void check(const CudaCheckProblem& p, cudaStream_t stream) {
  const bool any = p.batch.samples > 0 && p.features > 0;
  queue(check_kernel, any ? grid_of(p.batch.samples, kThreads, p.features) : dim3(1), kThreads,
        stream, p);
}

void pool(const CudaPoolProblem& p, cudaStream_t stream) {
  const bool aligned =
      reinterpret_cast<uintptr_t>(p.y) % sizeof(float4) == 0 && p.columns % kVector == 0;
  with_rows(p.pack, [&](auto example, auto vectors) {
    constexpr int kVectors = decltype(vectors)::value, kBags = kVectors < 4 ? 4 / kVectors : 1;
    // Blocks of narrow tables have more teams than the grid counts, and some of their blocks have
    // nothing to do.
    const int64_t teams = kThreads / lanes_of(static_cast<int>(p.pack.widest));
    queue(pool_kernel<decltype(example), kVectors, kBags>,
          grid_of(p.batch.samples, teams * kBags, p.pack.num_features), kThreads, stream, p,
          aligned);
  });
}

}  // namespace dovetail::embedding::cuda
