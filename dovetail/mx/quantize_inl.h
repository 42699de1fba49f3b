// One vector of elements through a microscaling format, and the reductions around it.
// Compiled once per instruction set: included by *_simd.cpp after simd_config.h, through foreach_target.
#if defined(DOVETAIL_MX_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_MX_QUANTIZE_INL_H_
#undef DOVETAIL_MX_QUANTIZE_INL_H_
#else
#define DOVETAIL_MX_QUANTIZE_INL_H_
#endif

#include <array>
#include <cstdint>
#include <type_traits>

#include "dovetail/mx/codec.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::mx {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
#if HWY_TARGET != HWY_SCALAR

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using BitsVector = hn::Vec<BitsTag>;
using HalfTag = hn::Rebind<uint16_t, FloatTag>;
using ByteTag = hn::Repartition<uint8_t, BitsTag>;
using ByteVector = hn::Vec<ByteTag>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(FloatTag()));
/// Vectors whose codes fill one vector of bytes.
constexpr int kPack = 4;
constexpr int64_t kPacked = kPack * kLanes;

/// The 16 bits of an input element. Types of their own, since both lie in memory as uint16_t.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

HWY_INLINE BitsVector splat(uint32_t value) { return hn::Set(BitsTag(), value); }
HWY_INLINE FloatVector as_float(BitsVector v) { return hn::BitCast(FloatTag(), v); }
HWY_INLINE BitsVector as_bits(FloatVector v) { return hn::BitCast(BitsTag(), v); }

/// Bits of the input type, in the low half for 16 bits, made those of a float32. The magnitudes keep their order.
template <class T>
HWY_INLINE BitsVector widen(BitsVector v) {
  if constexpr (sizeof(T) == 4) return v;
  if constexpr (std::is_same_v<T, BFloat16>) return hn::ShiftLeft<16>(v);
  if constexpr (std::is_same_v<T, Float16>) {
    // A subnormal gets the exponent -14 and loses the implicit one by a subtraction of normal numbers.
    constexpr uint32_t kSmallestNormal = 113u << 23;
    const BitsVector sign = hn::ShiftLeft<16>(hn::And(v, splat(0x8000)));
    const BitsVector magnitude = hn::ShiftLeft<13>(hn::And(v, splat(0x7fff)));
    const BitsVector normal = hn::Add(magnitude, splat(112u << 23));
    const BitsVector subnormal =
        as_bits(hn::Sub(as_float(hn::Add(magnitude, splat(kSmallestNormal))), as_float(splat(kSmallestNormal))));
    const BitsVector infinite = hn::Or(magnitude, splat(bits::kInfinity));
    const BitsVector finite = hn::IfThenElse(hn::Lt(magnitude, splat(1u << 23)), subnormal, normal);
    return hn::Or(sign, hn::IfThenElse(hn::Lt(magnitude, splat(31u << 23)), finite, infinite));
  }
}

/// kLanes elements as the bits of float32.
HWY_INLINE BitsVector load_bits(const float* from) {
  return hn::LoadU(BitsTag(), reinterpret_cast<const uint32_t*>(from));
}
template <class T>
HWY_INLINE BitsVector load_bits(const T* from) {
  return widen<T>(hn::PromoteTo(BitsTag(), hn::LoadU(HalfTag(), reinterpret_cast<const uint16_t*>(from))));
}

/// The bits of `yes` where the mask has ones. (IfVecThenElse looks at whole bytes before AVX-512.)
HWY_INLINE BitsVector select_bits(BitsVector mask, BitsVector yes, BitsVector no) {
#if HWY_TARGET == HWY_AVX3
  return hn::IfVecThenElse(mask, yes, no);
#else
  return hn::Or(hn::And(mask, yes), hn::AndNot(mask, no));
#endif
}

/// Constants of one format.
struct Encoder {
  explicit Encoder(const ElementSpec& spec)
      : shift(bits::kFractionBits - spec.mantissa_bits),
        min_normal(static_cast<uint32_t>(spec.min_exponent + bits::kExponentBias) << bits::kFractionBits),
        code_mask((1u << (spec.bits - 1)) - 1),
        sign_shift(32 - spec.bits),
        max_bits(static_cast<uint32_t>(spec.max_exponent + bits::kExponentBias) << bits::kFractionBits |
                 spec.max_fraction),
        magic((static_cast<uint32_t>(shift) << bits::kFractionBits) + ((0u - (min_normal >> shift)) & code_mask)) {}
  int shift;
  uint32_t min_normal, code_mask;
  int sign_shift;
  uint32_t max_bits, magic;
};

struct Energies {
  FloatVector signal, error;  ///< in units of the block's scale
};

/// The codes of a vector, one in each lane, and its energies added up. `inverse` is the power of two that divides by
/// the scale: an exact product, whose result below 2^-126 is zero in any case.
///
/// t + 2^(e + shift), e the exponent of t or the smallest normal one, has its last place at that of the format: the
/// addition is the rounding (the technique of Dekker 1971), and its low bits count units of that place. `magic` also
/// holds the constant that makes these bits, plus the exponent, the code; it is even, so ties fall as they should.
template <bool kTwosComplement>
HWY_INLINE BitsVector encode(const Encoder& f, BitsVector x, FloatVector inverse, Energies& energies) {
  const BitsVector scaled = as_bits(hn::Mul(as_float(hn::And(x, splat(bits::kMagnitude))), inverse));
  const BitsVector t = hn::Min(scaled, splat(f.max_bits));
  const BitsVector place = hn::And(hn::Max(t, splat(f.min_normal)), splat(bits::kInfinity));
  const FloatVector step = as_float(hn::Add(place, splat(f.magic)));
  const FloatVector sum = hn::Add(as_float(t), step);
  const FloatVector difference = hn::Sub(as_float(scaled), hn::Sub(sum, step));
  energies.signal = hn::MulAdd(as_float(scaled), as_float(scaled), energies.signal);
  energies.error = hn::MulAdd(difference, difference, energies.error);
  const BitsVector code = hn::Add(as_bits(sum), hn::Shr(place, splat(static_cast<uint32_t>(f.shift))));
  if constexpr (kTwosComplement) {
    const BitsVector sign =
        as_bits(hn::BitCast(FloatTag(), hn::BroadcastSignBit(hn::BitCast(hn::RebindToSigned<FloatTag>(), x))));
    const BitsVector magnitude = hn::And(code, splat(f.code_mask));
    return hn::And(hn::Sub(hn::Xor(magnitude, sign), sign), splat(0xff));
  }
  return select_bits(splat(f.code_mask), code, hn::Shr(x, splat(static_cast<uint32_t>(f.sign_shift))));
}

/// The low bytes of four vectors of codes below 256, in order.
HWY_INLINE ByteVector pack(const BitsVector (&codes)[kPack]) {
  const BitsVector quads = hn::Or(hn::Or(codes[0], hn::ShiftLeft<8>(codes[1])),
                                  hn::Or(hn::ShiftLeft<16>(codes[2]), hn::ShiftLeft<24>(codes[3])));
  alignas(16) static constexpr uint8_t kTranspose[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  const ByteVector bytes = hn::TableLookupBytes(hn::BitCast(ByteTag(), quads), hn::LoadDup128(ByteTag(), kTranspose));
  if constexpr (kLanes == 4) return bytes;
  alignas(64) static constexpr auto kOrder = [] {
    std::array<int32_t, kLanes> order = {};
    for (int64_t i = 0; i < kLanes; ++i)
      order[static_cast<size_t>(i)] = static_cast<int32_t>(i % (kLanes / 4) * 4 + i / (kLanes / 4));
    return order;
  }();
  return hn::BitCast(
      ByteTag(), hn::TableLookupLanes(hn::BitCast(BitsTag(), bytes), hn::SetTableIndices(BitsTag(), kOrder.data())));
}

/// Largest magnitudes of a block's lanes, as bits of the input type.
HWY_INLINE BitsVector lane_maxima(const float* x) {
  const BitsVector mask = splat(bits::kMagnitude);
  BitsVector most = hn::And(load_bits(x), mask);
  for (int64_t i = kLanes; i < kBlock; i += kLanes) most = hn::Max(most, hn::And(load_bits(x + i), mask));
  return most;
}
template <class T>
HWY_INLINE BitsVector lane_maxima(const T* x) {
  const hn::Repartition<uint16_t, BitsTag> d;
  const auto mask = hn::Set(d, 0x7fff);
  const auto* from = reinterpret_cast<const uint16_t*>(x);
  auto most = hn::And(hn::LoadU(d, from), mask);
  for (int64_t i = 2 * kLanes; i < kBlock; i += 2 * kLanes) most = hn::Max(most, hn::And(hn::LoadU(d, from + i), mask));
  const BitsVector pairs = hn::BitCast(BitsTag(), most);
  return hn::Max(hn::And(pairs, splat(0xffff)), hn::ShiftRight<16>(pairs));
}

/// The maxima of v's 128-bit parts, stored as four numbers.
template <class D>
HWY_INLINE void store_maximum_of_parts(D d, hn::Vec<D> v, uint32_t* to) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    store_maximum_of_parts(half, hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), to);
  }
}

/// amax[0 .. 4) of four blocks that follow one another.
template <class T>
HWY_INLINE void four_block_maxima(const T* x, uint32_t* amax) {
  const BitsTag d;
  const hn::Repartition<uint64_t, BitsTag> pairs;
  const auto fold = [d](BitsVector a, BitsVector b) {
    return hn::Max(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  };
  const auto ab = hn::BitCast(pairs, fold(lane_maxima(x), lane_maxima(x + kBlock)));
  const auto cd = hn::BitCast(pairs, fold(lane_maxima(x + 2 * kBlock), lane_maxima(x + 3 * kBlock)));
  const BitsVector low = hn::BitCast(d, hn::InterleaveLower(pairs, ab, cd));
  const BitsVector high = hn::BitCast(d, hn::InterleaveUpper(pairs, ab, cd));
  store_maximum_of_parts(d, hn::Max(low, high), amax);
}

HWY_INLINE float sum_lanes(FloatVector v) { return hn::GetLane(hn::SumOfLanes(FloatTag(), v)); }
HWY_INLINE int64_t count_true(hn::Mask<BitsTag> mask) { return static_cast<int64_t>(hn::CountTrue(BitsTag(), mask)); }

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace dovetail::mx
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
