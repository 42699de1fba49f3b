// Encoding of vectors of elements in a microscaling format. Also the block maxima and lane sums
// that encoding needs. Compiled once per instruction set: included by *_simd.cpp after
// simd_config.h, through Highway's foreach_target.
#if defined(DOVETAIL_MX_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_MX_QUANTIZE_INL_H_
#undef DOVETAIL_MX_QUANTIZE_INL_H_
#else
#define DOVETAIL_MX_QUANTIZE_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "dovetail/mx/codec.h"
#include "dovetail/mx/encoder.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

// Unrolls loops over a few vectors that must stay in registers. With -O2 alone, they would stay
// loops over memory.
#undef DOVETAIL_UNROLL
#define DOVETAIL_UNROLL _Pragma("GCC unroll 8")

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
/// Number of float32 vectors in a pack. The codes of a pack fill one vector of bytes.
constexpr int kPack = 4;
/// Number of elements in a pack.
constexpr int64_t kPacked = kPack * kLanes;
/// Bytes of a cache line. Codes that are stored past the caches must fill a whole line at once.
constexpr int64_t kLine = 64;

/// Bits of a 16-bit input element. Distinct types tell the formats apart, since both are stored as
/// uint16_t.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

HWY_INLINE BitsVector splat(uint32_t value) { return hn::Set(BitsTag(), value); }
HWY_INLINE FloatVector as_float(BitsVector v) { return hn::BitCast(FloatTag(), v); }
HWY_INLINE BitsVector as_bits(FloatVector v) { return hn::BitCast(BitsTag(), v); }

/// Converts bits of the input type T to float32 bits. 16-bit inputs are in the low half of each
/// lane. Magnitudes keep their order.
template <class T>
HWY_INLINE BitsVector widen(BitsVector v) {
  if constexpr (sizeof(T) == 4) return v;
  if constexpr (std::is_same_v<T, BFloat16>) return hn::ShiftLeft<16>(v);
  if constexpr (std::is_same_v<T, Float16>) {
    // A subnormal number gets the exponent -14. Subtracting two normal numbers then removes the
    // implicit one.
    constexpr uint32_t kSmallestNormal = 113u << 23;
    const BitsVector sign = hn::ShiftLeft<16>(hn::And(v, splat(0x8000)));
    const BitsVector magnitude = hn::ShiftLeft<13>(hn::And(v, splat(0x7fff)));
    const BitsVector normal = hn::Add(magnitude, splat(112u << 23));
    const BitsVector subnormal = as_bits(hn::Sub(
        as_float(hn::Add(magnitude, splat(kSmallestNormal))), as_float(splat(kSmallestNormal))));
    const BitsVector infinite = hn::Or(magnitude, splat(bits::kInfinity));
    const BitsVector finite = hn::IfThenElse(hn::Lt(magnitude, splat(1u << 23)), subnormal, normal);
    return hn::Or(sign, hn::IfThenElse(hn::Lt(magnitude, splat(31u << 23)), finite, infinite));
  }
}

/// Loads kLanes elements as float32 bits.
HWY_INLINE BitsVector load_bits(const float* from) {
  return hn::LoadU(BitsTag(), reinterpret_cast<const uint32_t*>(from));
}
template <class T>
HWY_INLINE BitsVector load_bits(const T* from) {
  return widen<T>(
      hn::PromoteTo(BitsTag(), hn::LoadU(HalfTag(), reinterpret_cast<const uint16_t*>(from))));
}

/// Loads the kPacked elements at `from` as float32 bits. 16-bit elements change their order, since
/// this is cheapest. From 2 kLanes neighbours, `to[v]` gets the even ones and `to[v + 1]` the odd
/// ones. `pack` restores the order.
HWY_INLINE void load_pack(const float* from, BitsVector (&to)[kPack]) {
  DOVETAIL_UNROLL
  for (int v = 0; v < kPack; ++v) to[v] = load_bits(from + v * kLanes);
}
template <class T>
HWY_INLINE void load_pack(const T* from, BitsVector (&to)[kPack]) {
  DOVETAIL_UNROLL
  for (int v = 0; v < kPack; v += 2) {
    const BitsVector pairs =
        hn::LoadU(BitsTag(), reinterpret_cast<const uint32_t*>(from + v * kLanes));
    if constexpr (std::is_same_v<T, BFloat16>) {
      to[v] = hn::ShiftLeft<16>(pairs);
      to[v + 1] = hn::And(pairs, splat(0xffff0000));
    } else {
      to[v] = widen<T>(hn::And(pairs, splat(0xffff)));
      to[v + 1] = widen<T>(hn::ShiftRight<16>(pairs));
    }
  }
}

/// Loads kPacked float32 numbers, one for each element of a pack. Their order in `to` is the order
/// in which `load_pack` loads elements of T.
template <class T>
HWY_INLINE void load_for_pack(const float* from, FloatVector (&to)[kPack]) {
  const FloatTag d;
  DOVETAIL_UNROLL
  for (int v = 0; v < kPack; v += 2) {
    const FloatVector low = hn::LoadU(d, from + v * kLanes),
                      high = hn::LoadU(d, from + (v + 1) * kLanes);
    to[v] = sizeof(T) == 4 ? low : hn::ConcatEven(d, high, low);
    to[v + 1] = sizeof(T) == 4 ? high : hn::ConcatOdd(d, high, low);
  }
}

/// Selects bits of `yes` where the mask has ones, and bits of `no` elsewhere. Before AVX-512,
/// IfVecThenElse selects whole bytes.
HWY_INLINE BitsVector select_bits(BitsVector mask, BitsVector yes, BitsVector no) {
#if HWY_TARGET == HWY_AVX3
  return hn::IfVecThenElse(mask, yes, no);
#else
  return hn::Or(hn::And(mask, yes), hn::AndNot(mask, no));
#endif
}

/// Members of an Encoder (encoder.h) as vectors in registers. A loop would load an Encoder from
/// memory again and again: the compiler must assume that each store may change it.
struct Constants {
  BitsVector magnitude, exponent, shift, min_normal, code_mask, sign_shift, max_bits, magic;
  BitsVector steps;  ///< table for Path::kTable, indexed by the low bits of the exponent
};
HWY_INLINE Constants constants_of(const Encoder& f) {
  HWY_ALIGN uint32_t steps[std::max<int64_t>(kLanes, 16)];
  for (uint32_t i = 0; i < 16; ++i) {
    const uint32_t place = f.min_normal + (i << bits::kFractionBits);
    steps[(place >> bits::kFractionBits) % 16] = place + f.magic + (place >> f.shift) % 256;
  }
  return {splat(bits::kMagnitude), splat(bits::kInfinity), splat(f.shift),
          splat(f.min_normal),     splat(f.code_mask),     splat(f.sign_shift),
          splat(f.max_bits),       splat(f.magic),         hn::Load(BitsTag(), steps)};
}

/// Sums for the signal-to-noise ratio, one per lane: squares of numbers (`signal`) and of their
/// rounding errors (`error`). Numbers and errors are in units of their block's scale.
struct Energies {
  FloatVector signal, error;
};

/// Method by which `encode` finds 2^(e + shift), the number that it adds to round an element.
///   kPlain   Arithmetic on the exponent.
///   kClamp   Arithmetic, after clamping numbers beyond the format's largest.
///   kTable   Lookup in a table of 16 exponents, a single instruction with AVX-512. The entries
///            include the exponent's part of the code.
///   kWords   Like kTable, but packs of bfloat16 use `encode_words` (bfloat16_inl.h) if it can
///            encode them.
///   kRandom  `encode_at_random` (random_inl.h) instead of `encode`. It clamps numbers, too.
enum class Path { kPlain, kClamp, kTable, kWords, kRandom };

HWY_INLINE bool fits_table(const ElementSpec& spec) {
  return HWY_TARGET == HWY_AVX3 && spec.max_exponent - spec.min_exponent < 16;
}

HWY_INLINE BitsVector lookup_step(const Constants& c, BitsVector normal) {
#if HWY_TARGET == HWY_AVX3
  // The instruction reads only the four low bits of an index.
  const BitsVector exponent = hn::ShiftRight<bits::kFractionBits>(normal);
  return hn::TableLookupLanes(c.steps, hn::Indices512<uint32_t>{exponent.raw});
#else
  return normal;
#endif
}

HWY_INLINE void accumulate(FloatVector scaled, FloatVector rounded, Energies& energies) {
  const FloatVector difference = hn::Sub(scaled, rounded);
  energies.signal = hn::MulAdd(scaled, scaled, energies.signal);
  energies.error = hn::MulAdd(difference, difference, energies.error);
}

/// Returns the bits to store for element x in memory of type Out. If Out is uint8_t, they are its
/// code: the magnitude code with a sign. Otherwise they are its dequantized number. `code` is the
/// magnitude code, and `rounded` the rounded magnitude in units of `scale`.
template <class Out, bool kTwosComplement>
HWY_INLINE BitsVector with_sign(const Constants& c, BitsVector x, BitsVector code,
                                FloatVector rounded, FloatVector scale) {
  if constexpr (!std::is_same_v<Out, uint8_t>) {
    const BitsVector magnitude = as_bits(hn::Mul(rounded, scale)),
                     sign = hn::AndNot(c.magnitude, x);
    if constexpr (kTwosComplement)
      return hn::IfThenZeroElse(hn::Eq(magnitude, splat(0)), hn::Or(magnitude, sign));
    return hn::Or(magnitude, sign);
  }
  if constexpr (kTwosComplement) {
    const hn::RebindToSigned<BitsTag> di;
    const BitsVector sign = hn::BitCast(BitsTag(), hn::BroadcastSignBit(hn::BitCast(di, x)));
    return hn::Sub(hn::Xor(code, sign), sign);
  }
  return select_bits(c.code_mask, code, hn::Shr(x, c.sign_shift));
}

/// Encodes a vector x, one element in each lane. Returns what memory of type Out stores: codes
/// (uint8_t) or dequantized float32. Adds the squares of numbers and of rounding errors to
/// `energies`. `scale` is the scale 2^X of each element, and `inverse` is 2^-X. The product of
/// element and `inverse` is exact if it is at least 2^-126. Smaller products become zero in every
/// format.
///
/// Rounding is an addition (Dekker 1971), in these steps:
/// 1. t is the magnitude in units of the scale.
/// 2. e is the exponent of t, or the exponent of the smallest normal number if that is larger.
/// 3. The sum t + 2^(e + shift) has the same last place as a number of the format with exponent e.
///    So the addition rounds t, and the sum's low bits count units of this place.
/// 4. The code is the sum of these low bits, a constant (part of `magic`) and the exponent. The
///    constant is even, so that ties round to even.
template <class Out, bool kTwosComplement, Path kPath>
HWY_INLINE BitsVector encode(const Constants& c, BitsVector x, FloatVector inverse,
                             FloatVector scale, Energies& energies) {
  const FloatVector scaled = hn::Mul(as_float(hn::And(x, c.magnitude)), inverse);
  const BitsVector t =
      kPath == Path::kClamp ? hn::Min(as_bits(scaled), c.max_bits) : as_bits(scaled);
  const BitsVector normal = hn::Max(t, c.min_normal), place = hn::And(normal, c.exponent);
  const FloatVector step =
      as_float(kPath == Path::kTable ? lookup_step(c, normal) : hn::Add(place, c.magic));
  const FloatVector sum = hn::Add(as_float(t), step), rounded = hn::Sub(sum, step);
  accumulate(scaled, rounded, energies);
  const BitsVector code =
      kPath == Path::kTable ? as_bits(sum) : hn::Add(as_bits(sum), hn::Shr(place, c.shift));
  return with_sign<Out, kTwosComplement>(c, x, code, rounded, scale);
}

/// Returns the scale 2^X for its inverse 2^-X. Both must be normal numbers.
HWY_INLINE FloatVector scale_of(FloatVector inverse) {
  return as_float(hn::Sub(splat(254u << bits::kFractionBits), as_bits(inverse)));
}

/// Packs the low byte of each lane of four vectors into one vector of bytes. The bytes are in the
/// order that the elements had in memory before `load_pack`.
template <class T>
HWY_INLINE ByteVector pack(const BitsVector (&codes)[kPack]) {
  const hn::Repartition<uint16_t, BitsTag> d16;
  const auto low =
      hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(codes[2])), hn::BitCast(d16, codes[0]));
  const auto high =
      hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(codes[3])), hn::BitCast(d16, codes[1]));
  const BitsVector quads = select_bits(splat(0x00ff00ff), hn::BitCast(BitsTag(), low),
                                       hn::BitCast(BitsTag(), hn::ShiftLeft<8>(high)));
  // Order of the bytes of four neighbouring lanes. float32: by vector. 16 bits: pairs of even and
  // odd elements from two vectors.
  alignas(16) static constexpr uint8_t kByVector[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                        2, 6, 10, 14, 3, 7, 11, 15};
  alignas(16) static constexpr uint8_t kByPair[16] = {0, 1, 4, 5, 8,  9,  12, 13,
                                                      2, 3, 6, 7, 10, 11, 14, 15};
  const ByteVector bytes =
      hn::TableLookupBytes(hn::BitCast(ByteTag(), quads),
                           hn::LoadDup128(ByteTag(), sizeof(T) == 4 ? kByVector : kByPair));
  if constexpr (kLanes == 4) return bytes;
  constexpr int64_t kPart = sizeof(T) == 4 ? kLanes / 4 : kLanes / 2,
                    kWords = sizeof(T) == 4 ? 1 : 2;
  alignas(64) static constexpr auto kOrder = [] {
    std::array<int32_t, kLanes> order = {};
    for (int64_t i = 0; i < kLanes; ++i)
      order[static_cast<size_t>(i)] =
          static_cast<int32_t>(i % kPart / kWords * 4 + i / kPart * kWords + i % kWords);
    return order;
  }();
  return hn::BitCast(ByteTag(),
                     hn::TableLookupLanes(hn::BitCast(BitsTag(), bytes),
                                          hn::SetTableIndices(BitsTag(), kOrder.data())));
}

/// Stores a vector of codes. Bypasses the caches if `stream` is set and the address is aligned.
HWY_INLINE void store_codes(ByteVector codes, bool stream, uint8_t* to) {
  if (stream && reinterpret_cast<uintptr_t>(to) % static_cast<uintptr_t>(kPacked) == 0) {
    hn::Stream(codes, ByteTag(), to);
  } else {
    hn::StoreU(codes, ByteTag(), to);
  }
}

/// Destination of encoded packs in memory of type Out. Stores codes, and records if a code stored
/// by `put` has magnitude zero.
template <class T, class Out, bool kTwosComplement>
class Sink {
 public:
  Sink(const Encoder& f, bool stream)
      : mask_(hn::Set(ByteTag(), static_cast<uint8_t>(f.code_mask))), stream_(stream) {}
  HWY_INLINE void put(const BitsVector (&encoded)[kPack], uint8_t* to) {
    const ByteVector bytes = pack<T>(encoded);
    store_codes(bytes, stream_, to);
    least_ = hn::Min(least_, kTwosComplement ? bytes : hn::And(bytes, mask_));
  }
  /// Stores codes without recording zeros. Requires that only elements equal to zero have code
  /// zero.
  HWY_INLINE void put_bytes(ByteVector codes, uint8_t* to) { store_codes(codes, stream_, to); }
  /// Returns true if `put` has stored a code of zero magnitude.
  HWY_INLINE bool has_zero() const {
    return !hn::AllTrue(ByteTag(), hn::Ne(least_, hn::Zero(ByteTag())));
  }

 private:
  ByteVector mask_, least_ = hn::Set(ByteTag(), 255);
  bool stream_;
};

/// Destination of encoded packs as dequantized numbers, stored in the input type T. Restores the
/// order that `load_pack` has changed.
template <class T, bool kTwosComplement>
class Sink<T, T, kTwosComplement> {
 public:
  Sink(const Encoder&, bool) {}
  HWY_INLINE void put(const BitsVector (&encoded)[kPack], T* to) {
    DOVETAIL_UNROLL
    for (int v = 0; v < kPack; ++v)
      least_ = hn::Min(least_, hn::And(encoded[v], splat(bits::kMagnitude)));
    auto* words = reinterpret_cast<uint32_t*>(to);
    if constexpr (sizeof(T) == 4) {
      DOVETAIL_UNROLL
      for (int v = 0; v < kPack; ++v) hn::StoreU(encoded[v], BitsTag(), words + v * kLanes);
    } else {  // exact in 16 bits: the low halves are zero
      DOVETAIL_UNROLL
      for (int v = 0; v < kPack; v += 2)
        hn::StoreU(hn::Or(hn::ShiftRight<16>(encoded[v]), encoded[v + 1]), BitsTag(),
                   words + v / 2 * kLanes);
    }
  }
  HWY_INLINE bool has_zero() const { return !hn::AllTrue(BitsTag(), hn::Ne(least_, splat(0))); }

 private:
  BitsVector least_ = splat(bits::kMagnitude);
};

/// Prefetches the elements of a pack that will be encoded later. Memory would otherwise be idle
/// while cached elements are encoded.
template <class T>
HWY_INLINE void prefetch_pack(const T* x) {
  for (int64_t byte = 0; byte < kPacked * static_cast<int64_t>(sizeof(T)); byte += kLine)
    hwy::Prefetch(reinterpret_cast<const char*>(x) + byte);
}

/// Vector of unsigned integers as wide as T. The bits of magnitudes are compared as these integers.
template <class T>
using MagnitudeTag =
    hn::Repartition<std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>, BitsTag>;
template <class T>
using MagnitudeVector = hn::Vec<MagnitudeTag<T>>;

/// Returns a vector with the largest magnitudes of a block, as bits of the input type. Lane i has
/// the maximum over lane i of the block's vectors.
template <class T>
HWY_INLINE MagnitudeVector<T> lane_maxima(const T* x) {
  const MagnitudeTag<T> d;
  using U = hn::TFromD<MagnitudeTag<T>>;
  constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(MagnitudeTag<T>()));
  const auto mask = hn::Set(d, static_cast<U>(static_cast<U>(~U{0}) >> 1));
  const auto* from = reinterpret_cast<const U*>(x);
  auto most = hn::And(hn::LoadU(d, from), mask);
  for (int64_t i = kStep; i < kBlock; i += kStep)
    most = hn::Max(most, hn::And(hn::LoadU(d, from + i), mask));
  return most;
}

/// Takes the maximum over the 128-bit parts of v, lane by lane, and stores it as four 32-bit
/// numbers. If lanes have 16 bits, each number is the maximum of two neighbouring lanes.
template <class D>
HWY_INLINE void store_maximum_of_parts(D d, hn::Vec<D> v, uint32_t* to) {
  if constexpr (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) > 16) {
    const hn::Half<D> half;
    store_maximum_of_parts(half, hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), to);
  } else {
    const hn::Repartition<uint32_t, D> d32;
    const auto words = hn::BitCast(d32, v);
    if constexpr (sizeof(hn::TFromD<D>) == 4) return hn::StoreU(words, d32, to);
    hn::StoreU(hn::Max(hn::And(words, hn::Set(d32, 0xffff)), hn::ShiftRight<16>(words)), d32, to);
  }
}

/// Writes the largest magnitudes of four consecutive blocks to amax[0 .. 4), as bits of the input
/// type.
template <class T>
HWY_INLINE void four_block_maxima(const T* x, uint32_t* amax) {
  const MagnitudeTag<T> d;
  const auto fold = [d](auto pieces, MagnitudeVector<T> a, MagnitudeVector<T> b) {
    const auto left = hn::BitCast(pieces, a), right = hn::BitCast(pieces, b);
    return hn::Max(hn::BitCast(d, hn::InterleaveLower(pieces, left, right)),
                   hn::BitCast(d, hn::InterleaveUpper(pieces, left, right)));
  };
  const auto ab = fold(BitsTag(), lane_maxima(x), lane_maxima(x + kBlock));
  const auto cd = fold(BitsTag(), lane_maxima(x + 2 * kBlock), lane_maxima(x + 3 * kBlock));
  store_maximum_of_parts(d, fold(hn::Repartition<uint64_t, BitsTag>(), ab, cd), amax);
}

HWY_INLINE float sum_lanes(FloatVector v) { return hn::GetLane(hn::SumOfLanes(FloatTag(), v)); }
HWY_INLINE int64_t sum_counts(BitsVector v) { return hn::GetLane(hn::SumOfLanes(BitsTag(), v)); }
HWY_INLINE int64_t count_true(hn::Mask<BitsTag> mask) {
  return static_cast<int64_t>(hn::CountTrue(BitsTag(), mask));
}

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace dovetail::mx
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
