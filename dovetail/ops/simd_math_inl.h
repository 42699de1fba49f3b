// Vectors of float32, loaded from float32 or bfloat16 memory, and the functions that kernels need
// on them. Compiled once per instruction set: included by *_simd.cpp after simd_config.h, through
// Highway's foreach_target.
#if defined(DOVETAIL_OPS_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_OPS_SIMD_MATH_INL_H_
#undef DOVETAIL_OPS_SIMD_MATH_INL_H_
#else
#define DOVETAIL_OPS_SIMD_MATH_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::ops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using BFloat16 = uint16_t;  // the bits of a bfloat16
using BFloat16Tag = hn::Rebind<BFloat16, FloatTag>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(FloatTag()));

HWY_INLINE FloatVector splat(float value) { return hn::Set(FloatTag(), value); }

HWY_INLINE FloatVector load(const float* from) { return hn::LoadU(FloatTag(), from); }
HWY_INLINE FloatVector load(const BFloat16* from) {
  return hn::BitCast(FloatTag(),
                     hn::ShiftLeft<16>(hn::PromoteTo(BitsTag(), hn::LoadU(BFloat16Tag(), from))));
}

HWY_INLINE void store(FloatVector value, float* to) { hn::StoreU(value, FloatTag(), to); }
/// Stores bfloat16, rounded to nearest even. A NaN stays a NaN: the top bits of its payload are
/// kept, and the quiet bit is set.
HWY_INLINE void store(FloatVector value, BFloat16* to) {
  const BitsTag d;
  const auto bits = hn::BitCast(d, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(d, 0x00400000));
  const auto is_nan = hn::Gt(hn::And(bits, hn::Set(d, 0x7fffffff)), hn::Set(d, 0x7f800000));
  const auto high = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(BFloat16Tag(), hn::BitCast(hn::RebindToSigned<FloatTag>(), high)),
             BFloat16Tag(), to);
}

/// Loads the final `count` < kLanes elements of a row. The lanes beyond `count` are zero.
template <class T>
HWY_NOINLINE FloatVector load_tail(const T* from, int64_t count) {
  HWY_ALIGN T values[kLanes] = {};
  std::memcpy(values, from, static_cast<size_t>(count) * sizeof(T));
  return load(values);
}
/// Loads kLanes elements, or `count` if that is fewer. The lanes beyond `count` are then zero.
template <class T>
HWY_INLINE FloatVector load(const T* from, int64_t count) {
  return HWY_LIKELY(count >= kLanes) ? load(from) : load_tail(from, count);
}
/// Stores kLanes elements, or `count` if that is fewer. Nothing else is written.
template <class T>
HWY_INLINE void store(FloatVector value, T* to, int64_t count) {
  if (HWY_LIKELY(count >= kLanes)) return store(value, to);
  HWY_ALIGN T values[kLanes];
  store(value, values);
  std::memcpy(to, values, static_cast<size_t>(count) * sizeof(T));
}

HWY_INLINE float sum_lanes(FloatVector v) { return hn::GetLane(hn::SumOfLanes(FloatTag(), v)); }
HWY_INLINE float max_lanes(FloatVector v) { return hn::GetLane(hn::MaxOfLanes(FloatTag(), v)); }

/// Returns the larger of `bound` and x. NaN in x is propagated. The max instructions are not used,
/// since they treat NaN differently on different instruction sets.
HWY_INLINE FloatVector at_least(float bound, FloatVector x) {
  return hn::IfThenElse(hn::Lt(x, splat(bound)), splat(bound), x);
}
/// Returns the smaller of `bound` and x. NaN in x is propagated.
HWY_INLINE FloatVector at_most(float bound, FloatVector x) {
  return hn::IfThenElse(hn::Gt(x, splat(bound)), splat(bound), x);
}

/// Returns e^x within 2 ulp for x in [-87, 88]. x is clamped to this range, so the result is never
/// zero or infinite. NaN is propagated.
HWY_INLINE FloatVector exponential(FloatVector x) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  x = at_most(88.0f, at_least(-87.0f, x));
  const FloatVector n = hn::Round(hn::Mul(x, splat(1.44269504f)));
  FloatVector r = hn::NegMulAdd(n, splat(0.693359375f), x);
  r = hn::NegMulAdd(n, splat(-2.12194440e-4f), r);
  // Cephes' minimax polynomial on [-ln 2 / 2, ln 2 / 2].
  FloatVector p = splat(1.9875691500e-4f);
  p = hn::MulAdd(p, r, splat(1.3981999507e-3f));
  p = hn::MulAdd(p, r, splat(8.3334519073e-3f));
  p = hn::MulAdd(p, r, splat(4.1665795894e-2f));
  p = hn::MulAdd(p, r, splat(1.6666665459e-1f));
  p = hn::MulAdd(p, r, splat(5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), splat(1.0f));
  const auto scale = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::Mul(p, hn::BitCast(d, scale));
}

/// Returns e^x for softmax, with x <= 0. The result is zero for x below -87, -infinity included.
HWY_INLINE FloatVector exponential_or_zero(FloatVector x) {
  return hn::IfThenZeroElse(hn::Lt(x, splat(-87.0f)), exponential(x));
}

HWY_INLINE FloatVector sigmoid(FloatVector x) {
  return hn::Div(splat(1.0f), hn::Add(splat(1.0f), exponential(hn::Neg(x))));
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::ops
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
