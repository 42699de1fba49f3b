#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/embedding/pool_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cstdint>

#include "dovetail/embedding/columns_inl.h"
#include "dovetail/embedding/pool_simd.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail {
namespace HWY_NAMESPACE {

using embedding::PoolFeature;
using embedding::PoolProblem;

/// Bags whose rows are on their way while one is summed.
constexpr int64_t kAhead = 12;
/// Rows of a bag that are asked for ahead; those behind them follow while these are summed.
constexpr int64_t kRowsAhead = 4;

HWY_INLINE void prefetch_bag(const PoolProblem& p, const PoolFeature& feature, const int64_t* bag) {
  const int64_t end = std::min(bag[1], bag[0] + kRowsAhead);
  for (int64_t i = bag[0]; i < end; ++i) prefetch_row(feature.rows + p.values[i] * feature.dim, feature.dim);
}

HWY_INLINE void pool_bag(const PoolProblem& p, const PoolFeature& feature, const int64_t* bag, float* y) {
  const float mean = feature.mean && bag[1] > bag[0] ? 1.0f / static_cast<float>(bag[1] - bag[0]) : 1.0f;
  each_block(feature.dim, [&](const auto& block) {
    constexpr int kCount = std::decay_t<decltype(block)>::kCount;
    FloatVector sum[kCount];
    for (int v = 0; v < kCount; ++v) sum[v] = splat(0.0f);
    for (int64_t i = bag[0]; i < bag[1]; ++i) {
      if (bag[1] - i > kRowsAhead) prefetch_row(feature.rows + p.values[i + kRowsAhead] * feature.dim, feature.dim);
      add_scaled(block, p.weights ? p.weights[i] : 1.0f, feature.rows + p.values[i] * feature.dim, sum);
    }
    for (int v = 0; v < kCount; ++v) {
      const FloatVector result = hn::Mul(sum[v], splat(mean));
      float* to = y + block.column + v * kLanes;
      if (p.stream) {
        hn::Stream(result, FloatTag(), to);
      } else {
        store(result, to, block.left(v));
      }
    }
  });
}

void PoolSamples(const PoolProblem& p, int64_t f, int64_t begin, int64_t end) {
  const PoolFeature& feature = p.features[static_cast<size_t>(f)];
  const int64_t* bags = p.offsets + f * p.samples;
  for (int64_t b = begin; b < std::min(begin + kAhead, end); ++b) prefetch_bag(p, feature, bags + b);
  for (int64_t b = begin; b < end; ++b) {
    if (b + kAhead < end) prefetch_bag(p, feature, bags + b + kAhead);
    pool_bag(p, feature, bags + b, p.y + b * p.columns + feature.column);
  }
  if (p.stream) hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::embedding {

HWY_EXPORT(PoolSamples);

void pool_samples(const PoolProblem& problem, int64_t feature, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(PoolSamples)(problem, feature, begin, end);
}

}  // namespace dovetail::embedding
#endif
