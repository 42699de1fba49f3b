#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/ops/adamw_simd.cpp"
#include "hwy/foreach_target.h"

#include <cstdint>

#include "dovetail/ops/adamw_simd.h"
#include "dovetail/ops/simd_math_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::ops {
namespace HWY_NAMESPACE {

template <class T>
void step(const AdamWSpan& s, const AdamWScalars& c) {
  const T* gradient = static_cast<const T*>(s.gradient);
  const FloatVector beta1 = splat(c.beta1), beta2 = splat(c.beta2), rest1 = splat(c.rest1),
                    rest2 = splat(c.rest2);
  const FloatVector scale = splat(c.grad_scale), decay = splat(s.decay), eps = splat(c.eps),
                    size = splat(c.step_size);
  const FloatVector correction = splat(c.inverse_correction);
  for (int64_t i = 0; i < s.count; i += kLanes) {
    const int64_t left = s.count - i;
    const FloatVector g = hn::Mul(load(gradient + i, left), scale);
    const FloatVector m = hn::MulAdd(beta1, load(s.m + i, left), hn::Mul(rest1, g));
    const FloatVector v = hn::MulAdd(beta2, load(s.v + i, left), hn::Mul(rest2, hn::Mul(g, g)));
    const FloatVector root = hn::MulAdd(hn::Sqrt(v), correction, eps);
    const FloatVector p =
        hn::NegMulAdd(size, hn::Div(m, root), hn::Mul(decay, load(s.parameter + i, left)));
    store(m, s.m + i, left);
    store(v, s.v + i, left);
    store(p, s.parameter + i, left);
    if (s.compute_copy) store(p, s.compute_copy + i, left);
  }
}

void AdamW(const AdamWSpan& s, const AdamWScalars& c) {
  return s.gradient_storage == Storage::kFloat32 ? step<float>(s, c) : step<BFloat16>(s, c);
}

#if HWY_TARGET == HWY_SCALAR
template <class T>
double squares(const T* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double value = hn::GetLane(load(x + i));
    sum += value * value;
  }
  return sum;
}
#else
template <class T>
double squares(const T* x, int64_t count) {
  const hn::ScalableTag<double> d;
  const hn::Half<FloatTag> half;
  auto low = hn::Zero(d), high = hn::Zero(d);
  for (int64_t i = 0; i < count; i += kLanes) {
    const FloatVector v = load(x + i, count - i);
    const auto a = hn::PromoteTo(d, hn::LowerHalf(half, v)),
               b = hn::PromoteTo(d, hn::UpperHalf(half, v));
    low = hn::MulAdd(a, a, low);
    high = hn::MulAdd(b, b, high);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(low, high)));
}
#endif

double SumOfSquares(const void* x, Storage storage, int64_t count) {
  return storage == Storage::kFloat32 ? squares(static_cast<const float*>(x), count)
                                      : squares(static_cast<const BFloat16*>(x), count);
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::ops {

HWY_EXPORT(AdamW);
HWY_EXPORT(SumOfSquares);

void adamw_span(const AdamWSpan& span, const AdamWScalars& scalars) {
  HWY_DYNAMIC_DISPATCH(AdamW)(span, scalars);
}

double sum_of_squares_span(const void* x, Storage storage, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquares)(x, storage, count);
}

}  // namespace dovetail::ops
#endif
