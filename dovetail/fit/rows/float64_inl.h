// Vectors of float64, loaded from float32 or float64.
// Compiled once per instruction set: included by *_simd.cpp after simd_config.h, through
// foreach_target.
#if defined(DOVETAIL_FIT_ROWS_FLOAT64_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_FIT_ROWS_FLOAT64_INL_H_
#undef DOVETAIL_FIT_ROWS_FLOAT64_INL_H_
#else
#define DOVETAIL_FIT_ROWS_FLOAT64_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::fit {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DoubleTag = hn::ScalableTag<double>;
using DoubleVector = hn::Vec<DoubleTag>;
using HalfTag = hn::Rebind<float, DoubleTag>;
constexpr int64_t kDoubles = static_cast<int64_t>(hn::MaxLanes(DoubleTag()));

/// Loads a vector of float64 from consecutive float32 or float64.
HWY_INLINE DoubleVector widen(const float* from) {
  return hn::PromoteTo(DoubleTag(), hn::LoadU(HalfTag(), from));
}
HWY_INLINE DoubleVector widen(const double* from) { return hn::LoadU(DoubleTag(), from); }
/// Same for the first `count` elements; the other lanes are 0.
HWY_INLINE DoubleVector widen(const float* from, size_t count) {
  const HalfTag d;
  return hn::PromoteTo(DoubleTag(), hn::MaskedLoad(hn::FirstN(d, count), d, from));
}
HWY_INLINE DoubleVector widen(const double* from, size_t count) {
  const DoubleTag d;
  return hn::MaskedLoad(hn::FirstN(d, count), d, from);
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::fit
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
