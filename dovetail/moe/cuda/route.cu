#include "dovetail/moe/cuda/launch.h"
#include "dovetail/moe/cuda/route_team.cuh"
#include "dovetail/ops/cuda/queue.cuh"

// Scores, choices, weights and losses of routing. T tokens, E experts, k choices.
//
// Bytes of memory traffic for each token: 4 E + 8 k, and 8 E / 32 of sums. T = 16384, E = 64, k =
// 2: 4.7 MB, 1.4 us by an H100's data sheet, 3.35 TB/s. Computed, not measured. So below some
// 50,000 tokens the launches bound the time. tests/moe/route_kernels_test.cpp compiles this file
// for a CPU.

namespace dovetail::moe::cuda {
namespace {

using ops::cuda::block_sum;
#ifdef __CUDACC__
using ops::cuda::queue;
#endif

constexpr int kFinishThreads = 256, kFinishRows = kFinishThreads / kWarp;
constexpr int kNoColumn = 0x7fffffff;

/// Sort key of a score: NaN counts as -infinity.
__device__ float key_of(float score) { return score >= -INFINITY ? score : -INFINITY; }

/// Candidate of a choice: its key, column and score.
struct Entry {
  float key, score;
  int column;  ///< kNoColumn: none
};

/// Returns the first entry in sort order among the lanes of a team, to every lane.
template <int kLanes, int kVectors>
__device__ Entry first_of(const Team<kLanes, kVectors>& team, Entry entry) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const Entry other{__shfl_xor_sync(team.mask, entry.key, offset),
                      __shfl_xor_sync(team.mask, entry.score, offset),
                      __shfl_xor_sync(team.mask, entry.column, offset)};
    if (stands_before(other.key, other.column, entry.key, entry.column)) entry = other;
  }
  return entry;
}

/// Clears the bits of columns outside of the token's groups. `keys` and `scores` are the team's
/// shared memory, a number for each column.
template <int kLanes, int kVectors, int kPerLane>
__device__ void leave_groups(const Team<kLanes, kVectors>& team, const RouteProblem& p,
                             const float (&key)[kPerLane], float* keys, float* scores,
                             unsigned& open) {
  const int groups = static_cast<int>(p.groups), size = static_cast<int>(p.shape.experts) / groups;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) keys[team.column(i)] = key[i];
  __syncwarp(team.mask);
  for (int g = team.lane; g < groups; g += kLanes) {
    float largest = -INFINITY, second = -INFINITY;
    for (int column = g * size; column < (g + 1) * size; ++column) {
      if (keys[column] > largest) {
        second = largest;
        largest = keys[column];
      } else if (keys[column] > second) {
        second = keys[column];
      }
    }
    scores[g] = p.summed == 2 ? largest + second : largest;
  }
  __syncwarp(team.mask);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int own = team.column(i) / size;
    if (own >= groups) continue;
    int before = 0;
    for (int g = 0; g < groups; ++g)
      before += stands_before(scores[g], g, scores[own], own) ? 1 : 0;
    if (before >= p.top_groups) open &= ~(1u << i);
  }
  __syncwarp(team.mask);  // the next token overwrites both
}

/// Writes the choices of token t and their scores. Adds to `counts`, and returns the sum of the
/// chosen scores. Bit i of `open`: column(i) can be chosen.
template <int kLanes, int kVectors, int kPerLane>
__device__ float choose_row(const Team<kLanes, kVectors>& team, const RouteProblem& p,
                            const float (&key)[kPerLane], const float (&score)[kPerLane],
                            unsigned open, int64_t t, int32_t* counts) {
  const int k = static_cast<int>(p.shape.k);
  float total = 0;
  for (int j = 0; j < k; ++j) {
    Entry best{-INFINITY, 0, kNoColumn};
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if ((open >> i & 1) != 0 && (best.column == kNoColumn || key[i] > best.key))
        best = {key[i], score[i], team.column(i)};
    best = first_of(team, best);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (team.column(i) == best.column) open &= ~(1u << i);
    total += best.score;
    if (team.lane == 0 && j < p.counted) atomicAdd(&counts[best.column], 1);
    if (team.lane != j % kLanes) continue;
    p.expert[t * k + j] = best.column;
    p.weight[t * k + j] = best.score;
  }
  return total;
}

/// Adds the sums of a block's teams and writes them as the block's part.
template <int kTeams, int kColumns>
__device__ void write_parts(const RouteProblem& p, const float* columns, const float* squares,
                            const int32_t* counts) {
  const int thread = static_cast<int>(threadIdx.x), experts = static_cast<int>(p.shape.experts);
  for (int c = thread; c < experts; c += kThreads) {
    float sum = 0;
    for (int i = 0; i < kTeams; ++i) sum += columns[i * kColumns + c];
    p.share_parts[int64_t{blockIdx.x} * experts + c] = sum;
    p.count_parts[int64_t{blockIdx.x} * experts + c] = counts[c];
  }
  if (thread > 0) return;
  float sum = 0;
  for (int i = 0; i < kTeams; ++i) sum += squares[i];
  p.square_parts[blockIdx.x] = sum;
  if (blockIdx.x == 0) *p.finished = 0;
}

/// Each team routes the tokens of its stride. A block adds its tokens' sums in a fixed order.
template <int kLanes, int kVectors, bool kGrouped>
__global__ void __launch_bounds__(kThreads) route_kernel(RouteProblem p) {
  using Lanes = Team<kLanes, kVectors>;
  constexpr int kPerLane = Lanes::kPerLane, kColumns = Lanes::kColumns, kTeams = Lanes::kTeams;
  __shared__ float columns[kTeams * kColumns];  // keys of a token; at the end sums of a team
  __shared__ float group_scores[kGrouped ? kTeams * kColumns : 1];
  __shared__ float squares[kTeams];
  __shared__ int32_t counts[kColumns];
  const Lanes team;
  const RouteShape& s = p.shape;
  const int thread = static_cast<int>(threadIdx.x), experts = static_cast<int>(s.experts),
            k = static_cast<int>(s.k);
  for (int c = thread; c < kColumns; c += kThreads) counts[c] = 0;
  __syncthreads();

  float sums[kPerLane] = {}, square = 0;
  for (int64_t t = team.first_token(); t < s.tokens; t += team.stride()) {
    Row<kPerLane> row;
    read_row(team, s, p.logits, t, row);
    score_row(team, s, row);
    square += row.log_sum_exp * row.log_sum_exp;
    float key[kPerLane];
    unsigned open = 0;  // bit i: column(i) can still be chosen
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int column = team.column(i);
      sums[i] += row.p[i] / row.total;
      const bool real = column < experts;
      key[i] = real ? key_of(row.p[i] + (p.bias == nullptr ? 0 : p.bias[column])) : -INFINITY;
      if (real) open |= 1u << i;
    }
    if constexpr (kGrouped)
      leave_groups(team, p, key, columns + team.index * kColumns,
                   group_scores + team.index * kColumns, open);

    const float total = choose_row(team, p, key, row.p, open, t, counts);
    const float divisor = s.normalized ? at_least(total) : 1;
    for (int j = team.lane; j < k; j += kLanes)
      p.weight[t * k + j] = p.weight[t * k + j] / divisor * s.scale;
  }

  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) columns[team.index * kColumns + team.column(i)] = sums[i];
  if (team.lane == 0) squares[team.index] = square;
  __syncthreads();
  write_parts<kTeams, kColumns>(p, columns, squares, counts);
}

/// Adds the parts. A warp's lane has a column, and each warp every kFinishRows-th part. The block
/// that ends last computes the losses, from the results of all blocks.
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(RouteProblem p, int parts) {
  __shared__ float shares[kFinishThreads];
  __shared__ int32_t counts[kFinishThreads];
  __shared__ bool is_last;
  const int thread = static_cast<int>(threadIdx.x), experts = static_cast<int>(p.shape.experts),
            column = static_cast<int>(blockIdx.x) * kWarp + thread % kWarp;
  float share = 0;
  int32_t count = 0;
  if (column < experts)
    for (int part = thread / kWarp; part < parts; part += kFinishRows) {
      share += p.share_parts[int64_t{part} * experts + column];
      count += p.count_parts[int64_t{part} * experts + column];
    }
  shares[thread] = share;
  counts[thread] = count;
  __syncthreads();
  const float tokens = static_cast<float>(p.shape.tokens);
  if (thread < kWarp && column < experts) {
    for (int row = 1; row < kFinishRows; ++row) {
      share += shares[row * kWarp + thread];
      count += counts[row * kWarp + thread];
    }
    p.mean_score[column] = share / tokens;
    p.relative_load[column] = static_cast<float>(count) * p.load_factor;
    __threadfence();  // other blocks see the results before the count below
  }
  __syncthreads();
  if (thread == 0) is_last = atomicAdd(p.finished, 1) == static_cast<int32_t>(gridDim.x) - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  // Other blocks wrote these: volatile reads pass by this multiprocessor's cache.
  const volatile float *mean = p.mean_score, *load = p.relative_load;
  float loss = 0, square = 0;
  for (int c = thread; c < experts; c += kFinishThreads) loss += load[c] * mean[c];
  for (int part = thread; part < parts; part += kFinishThreads) square += p.square_parts[part];
  loss = block_sum<kFinishThreads>(loss);
  square = block_sum<kFinishThreads>(square);
  if (thread > 0) return;
  *p.load_loss = loss;
  *p.z_loss = square / tokens;
}

template <int kLanes, int kVectors>
void route_by(TeamSize<kLanes, kVectors>, const RouteProblem& p, unsigned parts, Stream stream) {
  const auto kernel = p.top_groups < p.groups ? route_kernel<kLanes, kVectors, true>
                                              : route_kernel<kLanes, kVectors, false>;
  queue(kernel, parts, kThreads, stream, p);
}

}  // namespace

void route(const RouteProblem& p, Stream stream) {
  const auto parts = static_cast<unsigned>(route_parts(p.shape.tokens));
  with_team(p.shape.experts, [&](auto team) { route_by(team, p, parts, stream); });
  queue(finish_kernel, static_cast<unsigned>((p.shape.experts + kWarp - 1) / kWarp), kFinishThreads,
        stream, p, static_cast<int>(parts));
}

}  // namespace dovetail::moe::cuda
