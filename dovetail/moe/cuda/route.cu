#include <cmath>
#include <cstdint>

#include "dovetail/moe/cuda/launch.h"
#include "dovetail/ops/cuda/block.cuh"
#include "dovetail/ops/cuda/queue.cuh"

// Scores, choices, weights and losses of routing, and their gradient. T tokens, E experts, k
// choices.
//
// Bytes of memory traffic for each token. Rates are an H100's data sheet, 3.35 TB/s. Computed, not
// measured:
//   forward: 4 E + 8 k, and 8 E / 32 of sums. T = 16384, E = 64, k = 2: 4.7 MB, 1.4 us.
//   backward: 8 E + 8 k. The same sizes: 8.7 MB, 2.6 us.
// So below some 50,000 tokens the launches bound the time.
//
// A team of kLanes lanes holds the row of a token in registers, as vectors of four experts. Lanes
// are threads of one warp. tests/moe/route_kernels_test.cpp compiles this file for a CPU.

namespace dovetail::moe::cuda {
namespace {

using ops::cuda::block_sum;
using ops::cuda::kWarp;
#ifdef __CUDACC__
using ops::cuda::queue;
#endif

constexpr int kThreads = 128, kVector = 4;
constexpr int kFinishThreads = 256, kFinishRows = kFinishThreads / kWarp;
constexpr int kNoColumn = 0x7fffffff;
constexpr float kLeast = static_cast<float>(kLeastSum);

/// Replaces sums below kLeastSum. NaN stays.
__device__ float at_least(float sum) { return sum < kLeast ? kLeast : sum; }

/// Sort key of a score: NaN counts as -infinity.
__device__ float key_of(float score) { return score >= -INFINITY ? score : -INFINITY; }

/// Template arguments of a Team, as a value.
template <int kLanes, int kVectors>
struct TeamSize {};

/// Lanes that share a row. Register i of a lane holds column `column(i)`; columns ascend with i.
template <int kLanes, int kVectors>
struct Team {
  static constexpr int kPerLane = kVector * kVectors, kColumns = kLanes * kPerLane,
                       kTeams = kThreads / kLanes;
  static_assert(kPerLane <= 32, "a bit of a word for each column of a lane");
  int lane = static_cast<int>(threadIdx.x) % kLanes, index = static_cast<int>(threadIdx.x) / kLanes;
  /// Lanes of the warp that form the team.
  unsigned mask = kLanes == kWarp
                      ? ~0u
                      : ((1u << kLanes % kWarp) - 1)
                            << (static_cast<int>(threadIdx.x) % kWarp / kLanes * kLanes);

  __device__ int column(int i) const {
    return (i / kVector * kLanes + lane) * kVector + i % kVector;
  }
  __device__ int64_t first_token() const { return int64_t{blockIdx.x} * kTeams + index; }
  __device__ int64_t stride() const { return int64_t{gridDim.x} * kTeams; }

  __device__ float sum(float x) const {
    for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(mask, x, offset);
    return x;
  }
  __device__ float max(float x) const {
    for (int offset = kLanes / 2; offset > 0; offset /= 2)
      x = fmaxf(x, __shfl_xor_sync(mask, x, offset));
    return x;
  }
};

/// Logits and scores of a token. Columns behind the last expert have logit -infinity.
template <int kPerLane>
struct Row {
  float x[kPerLane], p[kPerLane];
  float log_sum_exp;
  float total;  ///< sum of p, at least kLeastSum; 1 for softmax
  bool small;   ///< true: the sum of p is below kLeastSum
};

template <int kLanes, int kVectors, int kPerLane>
__device__ void read_row(const Team<kLanes, kVectors>& team, const RouteShape& s,
                         const float* logits, int64_t token, Row<kPerLane>& row) {
  const float* from = logits + token * s.experts;
  const int experts = static_cast<int>(s.experts);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int first = team.column(kVector * v);
    float4 four = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    if (s.by_vectors) {
      if (first < experts) four = *reinterpret_cast<const float4*>(from + first);
    } else {
      if (first < experts) four.x = from[first];
      if (first + 1 < experts) four.y = from[first + 1];
      if (first + 2 < experts) four.z = from[first + 2];
      if (first + 3 < experts) four.w = from[first + 3];
    }
    row.x[kVector * v] = four.x;
    row.x[kVector * v + 1] = four.y;
    row.x[kVector * v + 2] = four.z;
    row.x[kVector * v + 3] = four.w;
  }
}

/// Computes the scores as softmax, sigmoid and logsumexp of ATen define them, also for infinities
/// and NaN.
template <int kLanes, int kVectors, int kPerLane>
__device__ void score_row(const Team<kLanes, kVectors>& team, const RouteShape& s,
                          Row<kPerLane>& row) {
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) largest = fmaxf(largest, row.x[i]);
  largest = team.max(largest);
  const bool finite = largest > -INFINITY && largest < INFINITY;
  const float base = finite ? largest : 0;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    row.p[i] = expf(row.x[i] - base);
    sum += row.p[i];
  }
  sum = team.sum(sum);
  row.log_sum_exp = logf(sum) + base;
  row.total = 1;
  row.small = false;
  if (s.softmax) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) row.p[i] = finite ? row.p[i] / sum : NAN;
    return;
  }
  float scores = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    row.p[i] = 1 / (1 + expf(-row.x[i]));
    scores += row.p[i];
  }
  scores = team.sum(scores);
  row.small = scores < kLeast;
  row.total = at_least(scores);
}

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

    float total = 0;
    for (int j = 0; j < k; ++j) {
      Entry best{-INFINITY, 0, kNoColumn};
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if ((open >> i & 1) != 0 && (best.column == kNoColumn || key[i] > best.key))
          best = {key[i], row.p[i], team.column(i)};
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
    const float divisor = s.normalized ? at_least(total) : 1;
    for (int j = team.lane; j < k; j += kLanes)
      p.weight[t * k + j] = p.weight[t * k + j] / divisor * s.scale;
  }

  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) columns[team.index * kColumns + team.column(i)] = sums[i];
  if (team.lane == 0) squares[team.index] = square;
  __syncthreads();
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

/// Gradient of the logits. With p the scores:
///
/// - softmax: dx = p (dp - sum of p dp)
/// - sigmoid: dx = dp p (1 - p)
///
/// dp adds two gradients. One comes through the weights, which are divided by the sum of chosen
/// scores if `normalized`. The other comes through the shares of mean_score. The z-loss adds
/// 2 logsumexp softmax(x) dz / T to dx.
template <int kLanes, int kVectors>
__global__ void __launch_bounds__(kThreads) route_gradient_kernel(RouteGradientProblem p) {
  using Lanes = Team<kLanes, kVectors>;
  constexpr int kPerLane = Lanes::kPerLane;
  const Lanes team;
  const RouteShape& s = p.shape;
  const int experts = static_cast<int>(s.experts), k = static_cast<int>(s.k);
  const float tokens = static_cast<float>(s.tokens),
              of_load = p.dload_loss == nullptr ? 0 : *p.dload_loss,
              of_square = p.dz_loss == nullptr ? 0 : 2 * *p.dz_loss / tokens;
  float dshare[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int column = team.column(i);
    dshare[i] = 0;
    if (column >= experts) continue;
    if (p.dmean_score != nullptr) dshare[i] += p.dmean_score[column];
    if (p.dload_loss != nullptr) dshare[i] += of_load * p.relative_load[column];
    dshare[i] /= tokens;
  }

  for (int64_t t = team.first_token(); t < s.tokens; t += team.stride()) {
    Row<kPerLane> row;
    read_row(team, s, p.logits, t, row);
    score_row(team, s, row);
    float dp[kPerLane] = {};
    unsigned chosen = 0;
    for (int j = 0; p.dweight != nullptr && j < k; ++j) {
      const int column = p.expert[t * k + j];
      const float gradient = p.dweight[t * k + j] * s.scale;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (team.column(i) != column) continue;
        dp[i] = gradient;
        chosen |= 1u << i;
      }
    }
    if (s.normalized && p.dweight != nullptr) {
      float total = 0, dot = 0;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if ((chosen >> i & 1) == 0) continue;
        total += row.p[i];
        dot += dp[i] * row.p[i];
      }
      total = team.sum(total);
      dot = team.sum(dot);
      const float divisor = at_least(total);
      const float of_total = total < kLeast ? 0 : dot / divisor / divisor;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if ((chosen >> i & 1) != 0) dp[i] = dp[i] / divisor - of_total;
    }
    float dot = 0;
    if (!s.softmax) {  // shares are p over their sum
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) dot += dshare[i] * row.p[i];
      dot = row.small ? 0 : team.sum(dot) / row.total / row.total;
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) dp[i] += dshare[i] / row.total - dot;
    if (s.softmax) {
      dot = 0;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) dot += dp[i] * row.p[i];
      dot = team.sum(dot);
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      dp[i] = s.softmax ? row.p[i] * (dp[i] - dot) : dp[i] * row.p[i] * (1 - row.p[i]);
      if (p.dz_loss != nullptr)
        dp[i] += of_square * row.log_sum_exp * expf(row.x[i] - row.log_sum_exp);
    }
    float* to = p.dlogits + t * s.experts;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int first = team.column(kVector * v);
      if (s.by_vectors) {
        if (first < experts)
          *reinterpret_cast<float4*>(to + first) = {dp[kVector * v], dp[kVector * v + 1],
                                                    dp[kVector * v + 2], dp[kVector * v + 3]};
        continue;
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        if (first + i < experts) to[first + i] = dp[kVector * v + i];
    }
  }
}

/// Calls `f` with the smallest team that holds a row, as a TeamSize.
template <class F>
void with_team(int64_t experts, F f) {
  if (experts <= 16) return f(TeamSize<4, 1>());
  if (experts <= 32) return f(TeamSize<8, 1>());
  if (experts <= 64) return f(TeamSize<16, 1>());
  if (experts <= 128) return f(TeamSize<32, 1>());
  if (experts <= 256) return f(TeamSize<32, 2>());
  if (experts <= 512) return f(TeamSize<32, 4>());
  f(TeamSize<32, 8>());
}

template <int kLanes, int kVectors>
void route_by(TeamSize<kLanes, kVectors>, const RouteProblem& p, unsigned parts, Stream stream) {
  const auto kernel = p.top_groups < p.groups ? route_kernel<kLanes, kVectors, true>
                                              : route_kernel<kLanes, kVectors, false>;
  queue(kernel, parts, kThreads, stream, p);
}

template <int kLanes, int kVectors>
void differentiate_by(TeamSize<kLanes, kVectors>, const RouteGradientProblem& p, unsigned parts,
                      Stream stream) {
  queue(route_gradient_kernel<kLanes, kVectors>, parts, kThreads, stream, p);
}

}  // namespace

void route(const RouteProblem& p, Stream stream) {
  const auto parts = static_cast<unsigned>(route_parts(p.shape.tokens));
  with_team(p.shape.experts, [&](auto team) { route_by(team, p, parts, stream); });
  queue(finish_kernel, static_cast<unsigned>((p.shape.experts + kWarp - 1) / kWarp), kFinishThreads,
        stream, p, static_cast<int>(parts));
}

void route_gradient(const RouteGradientProblem& p, Stream stream) {
  const auto parts = static_cast<unsigned>(route_parts(p.shape.tokens));
  with_team(p.shape.experts, [&](auto team) { differentiate_by(team, p, parts, stream); });
}

}  // namespace dovetail::moe::cuda
