#pragma once

#include <cmath>
#include <cstdint>

#include "dovetail/moe/cuda_kernels.h"
#include "dovetail/ops/cuda/block.cuh"

// A team of kLanes lanes holds the row of a token in registers, as vectors of four experts. Lanes
// are threads of one warp.

namespace dovetail::moe::cuda {
namespace {

using ops::cuda::kWarp;

constexpr int kThreads = 128, kVector = 4;
constexpr float kLeast = static_cast<float>(kLeastSum);

/// Replaces sums below kLeastSum. NaN stays.
__device__ float at_least(float sum) { return sum < kLeast ? kLeast : sum; }

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

}  // namespace
}  // namespace dovetail::moe::cuda
