#include "dovetail/moe/cuda/launch.h"
#include "dovetail/moe/cuda/route_team.cuh"
#include "dovetail/ops/cuda/queue.cuh"

// Gradient of the logits of routing. T tokens, E experts, k choices.
//
// Bytes of memory traffic for each token: 8 E + 8 k. T = 16384, E = 64, k = 2: 8.7 MB, 2.6 us by an
// H100's data sheet, 3.35 TB/s. Computed, not measured. tests/moe/route_kernels_test.cpp compiles
// this file for a CPU.

namespace dovetail::moe::cuda {
namespace {

#ifdef __CUDACC__
using ops::cuda::queue;
#endif

/// Sets dp to the gradient of the scores that comes through the weights of token t.
template <int kLanes, int kVectors, int kPerLane>
__device__ void differentiate_weights(const Team<kLanes, kVectors>& team,
                                      const RouteGradientProblem& p, int64_t t,
                                      const Row<kPerLane>& row, float (&dp)[kPerLane]) {
  const RouteShape& s = p.shape;
  const int k = static_cast<int>(s.k);
  unsigned chosen = 0;
  for (int j = 0; j < k; ++j) {
    const int column = p.expert[t * k + j];
    const float gradient = p.dweight[t * k + j] * s.scale;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (team.column(i) != column) continue;
      dp[i] = gradient;
      chosen |= 1u << i;
    }
  }
  if (!s.normalized) return;
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

/// Writes a row of gradients to `to`, (E).
template <int kLanes, int kVectors, int kPerLane>
__device__ void write_row(const Team<kLanes, kVectors>& team, const RouteShape& s,
                          const float (&dp)[kPerLane], float* to) {
  const int experts = static_cast<int>(s.experts);
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
  const int experts = static_cast<int>(s.experts);
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
    if (p.dweight != nullptr) differentiate_weights(team, p, t, row, dp);
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
    write_row(team, s, dp, p.dlogits + t * s.experts);
  }
}

template <int kLanes, int kVectors>
void differentiate_by(TeamSize<kLanes, kVectors>, const RouteGradientProblem& p, unsigned parts,
                      Stream stream) {
  queue(route_gradient_kernel<kLanes, kVectors>, parts, kThreads, stream, p);
}

}  // namespace

void route_gradient(const RouteGradientProblem& p, Stream stream) {
  const auto parts = static_cast<unsigned>(route_parts(p.shape.tokens));
  with_team(p.shape.experts, [&](auto team) { differentiate_by(team, p, parts, stream); });
}

}  // namespace dovetail::moe::cuda
