#include <algorithm>
#include <type_traits>

#include "dovetail/embedding/cuda/launch.h"
#include "dovetail/embedding/cuda/row.cuh"
#include "dovetail/ops/cuda/queue.cuh"

// Roofline of update_kernel: each distinct row and its state are read and written once. The
// gradient of each occurrence is read once. At 26 tables of 64 columns, 65,536 samples of one id
// and row-wise Adagrad: 609 MB, 0.20 ms at 3.0 TB/s. A row's number, its occurrences, their
// features and gradients are dependent loads. So a lane loads its row before the gradients, and
// the gradients of several occurrences at a time.
//
// tests/embedding/kernels_test.cpp compiles this file for a CPU.

namespace dovetail::embedding::cuda {
#ifdef __CUDACC__
using ops::cuda::queue;
#endif
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

/// Returns the number of a bag's feature.
__device__ uint32_t feature_of(const Divider& features, uint32_t bag) {
  return bag - features.divided(bag) * features.divisor;
}

__device__ BagGradient gradient_of(const CudaUpdateProblem& p, const Divider& features,
                                   uint32_t bag, int dim) {
  int64_t part = 0;
  while (part + 1 < p.num_parts && p.parts_on_gpu[part + 1].first_bag <= bag) ++part;
  const CudaGradient& in = p.parts_on_gpu[part];
  const uint32_t own = bag - static_cast<uint32_t>(in.first_bag), sample = features.divided(own);
  const int64_t column = p.pack.features[own - sample * features.divisor].column;
  const float* from = in.gradient + sample * in.gradient_stride + column;
  return {from, dim % kVector == 0 && reinterpret_cast<uintptr_t>(from) % sizeof(float4) == 0};
}

/// Adds the gradients of kCount occurrences from `i` on to `sum`, in their order.
template <int kVectors, int kCount>
__device__ void add_gradients(const CudaUpdateProblem& p, const Divider& features, int64_t i,
                              int dim, int lane, int lanes, float4 (&sum)[kVectors]) {
  CudaOccurrence occurrence[kCount];
  BagGradient gradient[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) occurrence[k] = p.sorted_occurrences[i + k];
#pragma unroll
  for (int k = 0; k < kCount; ++k) gradient[k] = gradient_of(p, features, occurrence[k].bag, dim);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = kVector * (lane + v * lanes);
    float4 x[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      x[k] = load_four(gradient[k].from + column, dim - column, gradient[k].whole);
#pragma unroll
    for (int k = 0; k < kCount; ++k) add_scaled(occurrence[k].scale, x[k], sum[v]);
  }
}

/// Adds the gradients of occurrences [begin, end) to `sum`, in their order.
template <int kVectors>
__device__ void sum_gradients(const CudaUpdateProblem& p, const Divider& features, int64_t begin,
                              int64_t end, int dim, int lane, int lanes, float4 (&sum)[kVectors]) {
  constexpr int kAtOnce = kVectors == 1 ? 4 : kVectors == 2 ? 2 : 1;
  int64_t i = begin;
  for (; i + kAtOnce <= end; i += kAtOnce)
    add_gradients<kVectors, kAtOnce>(p, features, i, dim, lane, lanes, sum);
  for (; i < end; ++i) add_gradients<kVectors, 1>(p, features, i, dim, lane, lanes, sum);
}

/// Row of a table that a team updates.
template <class Row, int kVectors>
struct OwnRow {
  /// Loads the row with number `key` in the pack. `bag` is one of its occurrences.
  __device__ OwnRow(const CudaUpdateProblem& p, const Divider& features, uint32_t key, uint32_t bag,
                    int lane, int lanes)
      : table_number(p.pack.features[feature_of(features, bag)].table),
        table(p.pack.tables[table_number]),
        number(key - table.first_row),
        dim(static_cast<int>(table.dim)),
        at(reinterpret_cast<Row*>(table.rows + number * table.row_bytes)) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = kVector * (lane + v * lanes);
      w[v] = load_own(at + column, dim - column, dim % kVector == 0);
    }
  }

  int64_t table_number;
  CudaTable table;
  int64_t number;  ///< number of the row in its table
  int dim;
  Row* at;
  float4 w[kVectors];  ///< elements of this lane
};

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
    case OptimizerKind::kRowWiseAdam:
      first = fmaf(c.rest1, g - first, first);
      return fmaf(-rate, first, w);
    case OptimizerKind::kFtrl: {
      const float before = sqrtf(second), square = g * g;
      second += square;
      const float root = sqrtf(second), grown = square / fmaxf(root + before, kLeastRoot);
      first = fmaf(-(grown / rate), w, first + g);
      const float beyond = fmaxf(fabsf(first) - c.l1, 0.0f);
      return copysignf(beyond / fmaxf((c.beta + root) / rate + c.l2, kLeastRoot), -first);
    }
  }
  return w;
}

__device__ float square(float4 x) {
  return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, x.x * x.x)));
}

__device__ void store_row(float4 w, const CudaUpdateProblem&, const CudaTable&, int64_t, int64_t,
                          int column, float* row, int left, bool whole) {
  store_four(w, row + column, left, whole);
}

__device__ void store_row(float4 w, const CudaUpdateProblem& p, const CudaTable& table,
                          int64_t table_number, int64_t number, int column, __nv_bfloat16* row,
                          int left, bool whole) {
  if (left <= 0) return;
  const uint64_t of_table = table.row_of == nullptr ? number : table.row_of[number];
  const auto high = static_cast<uint64_t>(table.rounding_first_row) +
                    of_table * static_cast<uint64_t>(table.rounding_row_step);
  const auto low = static_cast<uint64_t>((table.rounding_first_column + column) / kVector);
  store_four(w, philox_words(p.rounding_keys[table_number], low, high), row + column, left, whole);
}

/// Updates a row with a team. `g` is the sum of its gradients.
template <class Row, int kVectors>
__device__ void step_row(const CudaUpdateProblem& p, OwnRow<Row, kVectors>& row,
                         float4 (&g)[kVectors], int lane, int lanes) {
  const UpdateScalars& c = p.scalars;
  const int dim = row.dim;
  const bool whole = dim % kVector == 0;
  float* state = row.table.state + row.number * row.table.state_width;
  float squares[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    add_scaled(c.weight_decay, row.w[v], g[v]);
    squares[v] = square(g[v]);
  }
  float rate = c.lr;
  if (c.kind == OptimizerKind::kRowWiseAdagrad) {
    const unsigned mask = team_mask(lanes);
    const float s = *state + sum_team(squares, mask, lanes) / static_cast<float>(dim);
    __syncwarp(mask);  // all lanes have read *state
    if (lane == 0) *state = s;
    rate = c.lr / (sqrtf(s) + c.eps);
  } else if (c.kind == OptimizerKind::kRowWiseAdam) {
    const unsigned mask = team_mask(lanes);
    const float before = state[dim];
    const float mean = sum_team(squares, mask, lanes) / static_cast<float>(dim);
    const float v = before + c.rest2 * (mean - before);
    __syncwarp(mask);  // all lanes have read state[dim]
    if (lane == 0) state[dim] = v;
    rate = c.lr / (sqrtf(v) + c.eps);
  }
  const bool has_second = c.kind == OptimizerKind::kAdam || c.kind == OptimizerKind::kFtrl,
             has_first = has_second || c.kind == OptimizerKind::kMomentum ||
                         c.kind == OptimizerKind::kAdagrad || c.kind == OptimizerKind::kRowWiseAdam;
  const bool whole_state = whole && row.table.state_width % kVector == 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = kVector * (lane + v * lanes), left = dim - column;
    const float4 w = row.w[v];
    float4 first = {}, second = {};
    if (has_first) first = load_own(state + column, left, whole_state);
    if (has_second) second = load_own(state + dim + column, left, whole_state);
    const float4 x = {stepped(c, w.x, g[v].x, first.x, second.x, rate),
                      stepped(c, w.y, g[v].y, first.y, second.y, rate),
                      stepped(c, w.z, g[v].z, first.z, second.z, rate),
                      stepped(c, w.w, g[v].w, first.w, second.w, rate)};
    if (has_first) store_four(first, state + column, left, whole_state);
    if (has_second) store_four(second, state + dim + column, left, whole_state);
    store_row(x, p, row.table, row.table_number, row.number, column, row.at, left, whole);
  }
}

__device__ int64_t row_end(const CudaUpdateProblem& p, uint32_t row, uint32_t rows) {
  return row + 1 < rows ? int64_t{p.row_begins[row + 1]} : p.count;
}

/// One team for each row. Rows with many occurrences are left to the next kernel.
template <class Row, int kVectors>
__global__ void __launch_bounds__(kThreads)
    update_kernel(CudaUpdateProblem p, Divider features, int lanes) {
  const int shift = __ffs(lanes) - 1, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const uint32_t teams = gridDim.x * (kThreads >> shift), rows = p.counts[0];
  for (uint32_t row = blockIdx.x * (kThreads >> shift) + (threadIdx.x >> shift); row < rows;
       row += teams) {
    const int64_t begin = p.row_begins[row], end = row_end(p, row, rows);
    if (end - begin > kCudaSerial) {
      if (lane == 0) p.long_rows[atomicAdd(p.counts + 1, 1u)] = row;
      continue;
    }
    OwnRow<Row, kVectors> own(p, features, p.sorted_keys[begin], p.sorted_occurrences[begin].bag,
                              lane, lanes);
    float4 g[kVectors] = {};
    sum_gradients(p, features, begin, end, own.dim, lane, lanes, g);
    step_row(p, own, g, lane, lanes);
  }
}

// spills: update_long_kernel: the widest rows need more than the 128 registers of 512 threads.
// These rows are rare.
/// One block with kCudaParts teams for each row. Each team sums a part of the row's occurrences.
/// The order of long_rows differs between runs, but only one block updates a row.
template <class Row, int kVectors>
__global__ void __launch_bounds__(kCudaParts * 32)
    update_long_kernel(CudaUpdateProblem p, Divider features, int lanes) {
  __shared__ float4 partial[kCudaParts * 32];  // (kCudaParts, lanes), one vector at a time
  const int team = static_cast<int>(threadIdx.x) / lanes,
            lane = static_cast<int>(threadIdx.x) % lanes;
  const uint32_t rows = p.counts[0], long_rows = p.counts[1];
  for (uint32_t i = blockIdx.x; i < long_rows; i += gridDim.x) {
    const uint32_t row = p.long_rows[i];
    const int64_t begin = p.row_begins[row], count = row_end(p, row, rows) - begin;
    OwnRow<Row, kVectors> own(p, features, p.sorted_keys[begin], p.sorted_occurrences[begin].bag,
                              lane, lanes);
    float4 g[kVectors] = {};
    sum_gradients(p, features, begin + count * team / kCudaParts,
                  begin + count * (team + 1) / kCudaParts, own.dim, lane, lanes, g);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      __syncthreads();  // the previous sums are read before new ones are written
      partial[team * lanes + lane] = g[v];
      __syncthreads();
      if (team == 0)
        for (int part = 1; part < kCudaParts; ++part)
          add_scaled(1.0f, partial[part * lanes + lane], g[v]);
    }
    if (team == 0) step_row(p, own, g, lane, lanes);
  }
}

}  // namespace

void update_rows(const CudaUpdateProblem& p, cudaStream_t stream) {
  const Team team = team_of(p.pack.widest);
  const Divider features(static_cast<uint32_t>(p.pack.num_features));
  with_rows(p.pack, [&](auto example, auto vectors) {
    using Row = decltype(example);
    constexpr int kVectors = decltype(vectors)::value;
    queue(update_kernel<Row, kVectors>, blocks_for(p.count * team.lanes, kBlocks), kThreads, stream,
          p, features, team.lanes);
    queue(update_long_kernel<Row, kVectors>,
          static_cast<unsigned>(std::min(p.count / kCudaSerial + 1, kLongBlocks)),
          kCudaParts * team.lanes, stream, p, features, team.lanes);
  });
}

}  // namespace dovetail::embedding::cuda
