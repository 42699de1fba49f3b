#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/ops/fma_rate_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/fma_rate.h"
#include "dovetail/ops/simd_math_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::ops {
namespace HWY_NAMESPACE {

// Number of independent sums. Two units with a latency of four cycles need eight sums to stay busy;
// AVX2 has sixteen registers.
constexpr int kSums = 10;

/// Returns the number of operations. Writes the sums to `sink`, so that they are not optimized
/// away.
int64_t ChainFma(int64_t steps, float* sink) {
  FloatVector sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = splat(static_cast<float>(i));
  const FloatVector factor = splat(sink[0]), term = splat(sink[1]);
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = hn::MulAdd(sums[i], factor, term);
  }
  for (int i = 1; i < kSums; ++i) sums[0] = hn::Add(sums[0], sums[i]);
  sink[2] = sum_lanes(sums[0]);
  return steps * kSums * kLanes * 2;
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::ops {

HWY_EXPORT(ChainFma);

double measure_fma_rate(double seconds) {
  constexpr int64_t kSteps = 200000;
  const int workers = parallel_workers();
  double best = 0;
  for (const double start = now_seconds(); now_seconds() - start < seconds || best == 0;) {
    std::atomic<int64_t> operations{0};
    const double begin = now_seconds();
    parallel_pieces(workers, 1, [&operations](int64_t, int64_t) {
      float sink[3] = {0.5f, 1.0f, 0.0f};
      operations += HWY_DYNAMIC_DISPATCH(ChainFma)(kSteps, sink);
    });
    best = std::max(best, static_cast<double>(operations) / (now_seconds() - begin));
  }
  return best;
}

}  // namespace dovetail::ops
#endif
