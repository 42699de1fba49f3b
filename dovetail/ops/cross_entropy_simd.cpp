#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/ops/cross_entropy_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "dovetail/base/threads.h"
#include "dovetail/ops/cross_entropy_simd.h"
#include "dovetail/ops/simd_math_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::ops {
namespace HWY_NAMESPACE {

HWY_INLINE float to_float(float value) { return value; }
HWY_INLINE float to_float(BFloat16 bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

template <class T>
float row_maximum(const T* x, int64_t n) {
  FloatVector best = splat(-std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) best = hn::Max(best, load(x + i));
  float maximum = max_lanes(best);
  for (; i < n; ++i) maximum = std::max(maximum, to_float(x[i]));
  return maximum;
}

/// Returns the sum of e^(x - maximum). It is float32 in each lane, which holds n / kLanes terms of
/// at most 1.
template <class T>
float row_sum(const T* x, int64_t n, float maximum) {
  const FloatVector shift = splat(maximum);
  FloatVector even = splat(0.0f), odd = splat(0.0f);
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    even = hn::Add(even, exponential_or_zero(hn::Sub(load(x + i), shift)));
    odd = hn::Add(odd, exponential_or_zero(hn::Sub(load(x + i + kLanes), shift)));
  }
  float sum = sum_lanes(hn::Add(even, odd));
  for (; i < n; ++i) sum += std::exp(to_float(x[i]) - maximum);
  return sum;
}

template <class T>
void row(T* x, int64_t n, int64_t target, float* loss, bool gradient) {
  if (target == kIgnoredTarget) {
    *loss = 0.0f;
    if (gradient) std::fill_n(x, n, T{0});
    return;
  }
  const float maximum = row_maximum(x, n), sum = row_sum(x, n, maximum),
              at_target = to_float(x[target]);
  *loss = std::log(sum) + (maximum - at_target);
  if (!gradient) return;
  const FloatVector shift = splat(maximum), scale = splat(1.0f / sum);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    store(hn::Mul(exponential_or_zero(hn::Sub(load(x + i, left), shift)), scale), x + i, left);
  }
  // Uses the loss, not the rounded probability: 1 - p is exact to float32 even where p rounds to 1
  // in bfloat16.
  HWY_ALIGN T corrected[kLanes];
  store(splat(std::expm1(-*loss)), corrected);
  x[target] = corrected[0];
}

template <class T>
void rows(const CrossEntropyProblem& p) {
  const int64_t grain = std::max<int64_t>(1, 16384 / p.vocab);
  parallel_pieces(p.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      row(static_cast<T*>(p.logits) + i * p.vocab, p.vocab, p.targets[i], p.losses + i, p.gradient);
  });
}

void CrossEntropyRows(const CrossEntropyProblem& p) {
  return p.storage == Storage::kFloat32 ? rows<float>(p) : rows<BFloat16>(p);
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::ops {

HWY_EXPORT(CrossEntropyRows);

void cross_entropy_rows(const CrossEntropyProblem& problem) {
  HWY_DYNAMIC_DISPATCH(CrossEntropyRows)(problem);
}

}  // namespace dovetail::ops
#endif
