#include <algorithm>
#include <type_traits>

#include "dovetail/embedding/cuda/launch.h"
#include "dovetail/embedding/cuda/row.cuh"

namespace dovetail::embedding::cuda {
namespace {

// Maximum blocks of the two kernels. A block loops over further rows.
constexpr int64_t kBlocks = 1 << 12, kLongBlocks = 512;

/// Mask of the lanes in a thread's team, within its warp.
__device__ unsigned team_mask(int lanes) {
  const unsigned first = threadIdx.x % 32 / lanes * lanes;
  return (lanes == 32 ? ~0u : (1u << lanes) - 1) << first;
}

/// Gradient of a bag's pooled rows, from its feature's first column on. `whole`: loads of four are
/// aligned.
struct BagGradient {
  const float* from;
  bool whole;
};

__device__ BagGradient gradient_of(const CudaUpdateProblem& p, uint32_t bag, int64_t dim) {
  int64_t part = 0;
  while (part + 1 < p.num_parts && p.parts_on_gpu[part + 1].first_bag <= bag) ++part;
  const CudaGradient& in = p.parts_on_gpu[part];
  const int64_t own = bag - in.first_bag,
                column = p.pack.features[own % p.pack.num_features].column;
  const float* from = in.gradient + own / p.pack.num_features * in.gradient_stride + column;
  return {from, dim % kVector == 0 && reinterpret_cast<uintptr_t>(from) % sizeof(float4) == 0};
}

/// Adds the gradients of occurrences [begin, end) to `sum`, in their order.
template <int kVectors>
__device__ void sum_gradients(const CudaUpdateProblem& p, int64_t begin, int64_t end, int64_t dim,
                              int lane, int lanes, float4 (&sum)[kVectors]) {
#pragma unroll 4
  for (int64_t i = begin; i < end; ++i) {
    const CudaOccurrence occurrence = p.sorted_occurrences[i];
    const BagGradient gradient = gradient_of(p, occurrence.bag, dim);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = kVector * (lane + int64_t{v} * lanes);
      add_scaled(occurrence.scale, load_four(gradient.from + column, dim - column, gradient.whole),
                 sum[v]);
    }
  }
}

__device__ CudaTable table_of(const CudaPack& pack, uint32_t row) {
  int64_t low = 0, high = pack.num_tables;  // the table is in [low, high)
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (pack.tables[middle].first_row <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return pack.tables[low];
}

/// Sums `squares` over the team's lanes. Pairs of columns are added by halving, so the result does
/// not depend on the number of lanes.
template <int kVectors>
__device__ float sum_team(float (&squares)[kVectors], unsigned mask, int lanes) {
#pragma unroll
  for (int half = kVectors / 2; half > 0; half /= 2)
#pragma unroll
    for (int v = 0; v < half; ++v) squares[v] += squares[v + half];
  float sum = squares[0];
  for (int offset = lanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(mask, sum, offset);
  return sum;
}

/// Returns one updated element (optimizer.h). `rate` is the learning rate of its row.
__device__ float stepped(const UpdateScalars& c, float w, float g, float& first, float& second,
                         float rate) {
  switch (c.kind) {
    case OptimizerKind::kSgd:
    case OptimizerKind::kRowWiseAdagrad:
      return fmaf(-rate, g, w);
    case OptimizerKind::kMomentum:
      first = fmaf(c.momentum, first, g);
      return fmaf(-rate, first, w);
    case OptimizerKind::kAdagrad:
      first = fmaf(g, g, first);
      return fmaf(-rate, g / (sqrtf(first) + c.eps), w);
    case OptimizerKind::kAdam:
      first = fmaf(c.rest1, g - first, first);
      second = fmaf(c.rest2, g * g - second, second);
      return fmaf(-rate, first / (sqrtf(second) + c.eps), w);
  }
  return w;
}

__device__ float square(float4 x) {
  return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, x.x * x.x)));
}

__device__ void store_row(float4 w, const CudaTable&, int64_t, int64_t column, float* row,
                          int64_t left, bool whole) {
  store_four(w, row + column, left, whole);
}

__device__ void store_row(float4 w, const CudaTable& table, int64_t number, int64_t column,
                          __nv_bfloat16* row, int64_t left, bool whole) {
  if (left <= 0) return;
  const auto high = static_cast<uint64_t>(table.rounding_first_row) +
                    static_cast<uint64_t>(number) * static_cast<uint64_t>(table.rounding_row_step);
  const auto low = static_cast<uint64_t>((table.rounding_first_column + column) / kVector);
  store_four(w, philox_words(table.rounding_key, low, high), row + column, left, whole);
}

/// Updates one row with a team. `g` is the sum of its gradients.
template <class Row, int kVectors>
__device__ void step_row(const CudaUpdateProblem& p, const CudaTable& table, uint32_t key,
                         float4 (&g)[kVectors], int lane, int lanes) {
  const UpdateScalars& c = p.scalars;
  const int64_t number = key - table.first_row, dim = table.dim;
  const bool whole = dim % kVector == 0;
  Row* row = reinterpret_cast<Row*>(table.rows + number * table.row_bytes);
  float* state = table.state + number * table.state_width;
  float4 w[kVectors];
  float squares[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t column = kVector * (lane + int64_t{v} * lanes);
    w[v] = load_own(row + column, dim - column, whole);
    add_scaled(c.weight_decay, w[v], g[v]);
    squares[v] = square(g[v]);
  }
  float rate = c.lr;
  if (c.kind == OptimizerKind::kRowWiseAdagrad) {
    const unsigned mask = team_mask(lanes);
    const float s = *state + sum_team(squares, mask, lanes) / static_cast<float>(dim);
    __syncwarp(mask);  // all lanes have read *state
    if (lane == 0) *state = s;
    rate = c.lr / (sqrtf(s) + c.eps);
  }
  const bool has_first = c.kind == OptimizerKind::kMomentum || c.kind == OptimizerKind::kAdagrad ||
                         c.kind == OptimizerKind::kAdam;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t column = kVector * (lane + int64_t{v} * lanes), left = dim - column;
    float4 first = {}, second = {};
    if (has_first) first = load_own(state + column, left, whole);
    if (c.kind == OptimizerKind::kAdam) second = load_own(state + dim + column, left, whole);
    const float4 x = {stepped(c, w[v].x, g[v].x, first.x, second.x, rate),
                      stepped(c, w[v].y, g[v].y, first.y, second.y, rate),
                      stepped(c, w[v].z, g[v].z, first.z, second.z, rate),
                      stepped(c, w[v].w, g[v].w, first.w, second.w, rate)};
    if (has_first) store_four(first, state + column, left, whole);
    if (c.kind == OptimizerKind::kAdam) store_four(second, state + dim + column, left, whole);
    store_row(x, table, number, column, row, left, whole);
  }
}

__device__ int64_t row_end(const CudaUpdateProblem& p, uint32_t row, uint32_t rows) {
  return row + 1 < rows ? int64_t{p.row_begins[row + 1]} : p.count;
}

/// One team for each row. Rows with many occurrences are left to the next kernel.
template <class Row, int kVectors>
__global__ void __launch_bounds__(kThreads) update_kernel(CudaUpdateProblem p, int lanes) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x,
                teams = int64_t{gridDim.x} * kThreads / lanes;
  const int lane = static_cast<int>(thread % lanes);
  const uint32_t rows = p.counts[0];
  for (int64_t row = thread / lanes; row < rows; row += teams) {
    const int64_t begin = p.row_begins[row], end = row_end(p, static_cast<uint32_t>(row), rows);
    if (end - begin > kCudaSerial) {
      if (lane == 0) p.long_rows[atomicAdd(p.counts + 1, 1u)] = static_cast<uint32_t>(row);
      continue;
    }
    const uint32_t key = p.sorted_keys[begin];
    const CudaTable table = table_of(p.pack, key);
    float4 g[kVectors] = {};
    sum_gradients(p, begin, end, table.dim, lane, lanes, g);
    step_row<Row>(p, table, key, g, lane, lanes);
  }
}

// spills: update_long_kernel: the widest rows need more than the 128 registers of 512 threads.
// These rows are rare.
/// One block with kCudaParts teams for each row. Each team sums a part of the row's occurrences.
/// The order of long_rows differs between runs, but only one block updates a row.
template <class Row, int kVectors>
__global__ void __launch_bounds__(kCudaParts * 32)
    update_long_kernel(CudaUpdateProblem p, int lanes) {
  __shared__ float4 partial[kCudaParts * 32];  // (kCudaParts, lanes), one vector at a time
  const int team = static_cast<int>(threadIdx.x) / lanes,
            lane = static_cast<int>(threadIdx.x) % lanes;
  const uint32_t rows = p.counts[0], long_rows = p.counts[1];
  for (uint32_t i = blockIdx.x; i < long_rows; i += gridDim.x) {
    const uint32_t row = p.long_rows[i];
    const int64_t begin = p.row_begins[row], count = row_end(p, row, rows) - begin;
    const uint32_t key = p.sorted_keys[begin];
    const CudaTable table = table_of(p.pack, key);
    float4 g[kVectors] = {};
    sum_gradients(p, begin + count * team / kCudaParts, begin + count * (team + 1) / kCudaParts,
                  table.dim, lane, lanes, g);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      __syncthreads();  // the previous sums are read before new ones are written
      partial[team * lanes + lane] = g[v];
      __syncthreads();
      if (team == 0)
        for (int part = 1; part < kCudaParts; ++part)
          add_scaled(1.0f, partial[part * lanes + lane], g[v]);
    }
    if (team == 0) step_row<Row>(p, table, key, g, lane, lanes);
  }
}

}  // namespace

void update_rows(const CudaUpdateProblem& p, cudaStream_t stream) {
  const Team team = team_of(p.pack.widest);
  with_rows(p.pack, [&](auto example, auto vectors) {
    using Row = decltype(example);
    constexpr int kVectors = decltype(vectors)::value;
    update_kernel<Row, kVectors>
        <<<blocks_for(p.count * team.lanes, kBlocks), kThreads, 0, stream>>>(p, team.lanes);
    update_long_kernel<Row, kVectors>
        <<<static_cast<unsigned>(std::min(p.count / kCudaSerial + 1, kLongBlocks)),
           kCudaParts * team.lanes, 0, stream>>>(p, team.lanes);
  });
}

}  // namespace dovetail::embedding::cuda
