// Random number generator Philox in vectors, and stochastic rounding of vectors with its random
// words. Compiled once per instruction set: included by *_simd.cpp after simd_config.h, through
// Highway's foreach_target.
#if defined(DOVETAIL_MX_RANDOM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_MX_RANDOM_INL_H_
#undef DOVETAIL_MX_RANDOM_INL_H_
#else
#define DOVETAIL_MX_RANDOM_INL_H_
#endif

#include <cstdint>

#include "dovetail/mx/quantize_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::mx {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

using WideTag = hn::Repartition<uint64_t, BitsTag>;
using WideVector = hn::Vec<WideTag>;
/// Number of Philox calls that are computed together, one per 64-bit lane of a vector. Their
/// results fill two vectors of 32-bit words.
constexpr int64_t kPhiloxCalls = kLanes / 2;
constexpr int kPhiloxRounds = 10;

/// Writes the words of Philox4x32-10 for `calls` counters, from `counter` on, to `to`. Each counter
/// gives four words, in order. `counter_high` has the high 64 bits of all counters. `calls` is
/// rounded up to a multiple of kPhiloxCalls, so words of further counters may follow. Source:
/// Salmon et al., SC 2011; `philox_words` of base/philox.h.
inline void fill_philox(uint64_t key, uint64_t counter, uint64_t counter_high, int64_t calls,
                        uint32_t* to) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9,
                     kWeyl1 = 0xBB67AE85;
  const WideTag d;
  // The halves of a 64-bit lane hold words 0 and 1, or 2 and 3. Words 0 and 2 are in the high
  // halves, as products leave them.
  WideVector key0[kPhiloxRounds], key1[kPhiloxRounds];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const auto rounds = static_cast<uint32_t>(round);
    key0[round] =
        hn::Set(d, static_cast<uint64_t>(static_cast<uint32_t>(key) + rounds * kWeyl0) << 32);
    key1[round] =
        hn::Set(d, static_cast<uint64_t>(static_cast<uint32_t>(key >> 32) + rounds * kWeyl1) << 32);
  }
  // Counters of even and odd lanes are chosen so that the final interleaving puts them in order.
  HWY_ALIGN uint64_t offsets[kPhiloxCalls];
  for (int64_t i = 0; i < kPhiloxCalls; ++i)
    offsets[i] = static_cast<uint64_t>(i / 2 + i % 2 * (kPhiloxCalls / 2));
  const WideVector offset = hn::Load(d, offsets), high = hn::Set(d, counter_high);
  const BitsVector multiplier0 = splat(kMultiplier0), multiplier1 = splat(kMultiplier1);
  const auto swap = [](WideVector v) {
    return hn::BitCast(WideTag(), hn::Shuffle2301(hn::BitCast(BitsTag(), v)));
  };
  const auto times = [](WideVector v, BitsVector multiplier) {
    return hn::MulEven(hn::BitCast(BitsTag(), hn::ShiftRight<32>(v)), multiplier);
  };
  for (int64_t call = 0; call < calls; call += kPhiloxCalls, to += 2 * kLanes) {
    WideVector x01 = swap(hn::Add(hn::Set(d, counter + static_cast<uint64_t>(call)), offset)),
               x23 = swap(high);
#pragma GCC unroll 10
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const WideVector product0 = times(x01, multiplier0), product1 = times(x23, multiplier1);
      x01 = hn::Xor3(product1, hn::ShiftLeft<32>(x01), key0[round]);
      x23 = hn::Xor3(product0, hn::ShiftLeft<32>(x23), key1[round]);
    }
    x01 = swap(x01);
    x23 = swap(x23);
    hn::StoreU(hn::BitCast(BitsTag(), hn::InterleaveLower(d, x01, x23)), BitsTag(), to);
    hn::StoreU(hn::BitCast(BitsTag(), hn::InterleaveUpper(d, x01, x23)), BitsTag(), to + kLanes);
  }
}

/// Encodes a vector as `encode` does, but with stochastic rounding, like `shift_at_random`
/// (codec.h). `random` has a random word for each element. `underflows` counts, lane by lane, the
/// nonzero elements that become zero. Steps of rounding:
/// 1. t is the magnitude in units of the scale.
/// 2. t is written in units of the format's last place, as a whole number and a 32-bit
///    fraction. Lower bits are cut off.
/// 3. If the sum of fraction and random word exceeds 32 bits, the whole number is raised by 1. So
///    the fraction is the probability of rounding up.
template <class Out, bool kTwosComplement>
HWY_INLINE BitsVector encode_at_random(const Constants& c, BitsVector x, BitsVector random,
                                       FloatVector inverse, FloatVector scale, Energies& energies,
                                       BitsVector& underflows) {
  const BitsTag d;
  const hn::RebindToSigned<BitsTag> di;
  const BitsVector magnitude = hn::And(x, c.magnitude);
  const FloatVector scaled = hn::Mul(as_float(magnitude), inverse);
  const BitsVector t = hn::Min(as_bits(scaled), c.max_bits),
                   place = hn::And(hn::Max(t, c.min_normal), c.exponent);
  // `significand` has its leading one at bit 30. The fraction is the significand shifted right by
  // `right`, or left if `right` is negative. The whole part is the significand shifted right by 32
  // bits more. Every shift by 31 gives zero.
  const BitsVector significand = hn::Or(hn::And(hn::ShiftLeft<7>(t), splat(bits::kFraction << 7)),
                                        splat(1u << (bits::kFractionBits + 7)));
  const BitsVector cut =
      hn::ShiftRight<bits::kFractionBits>(hn::Sub(place, hn::And(t, c.exponent)));
  const auto right =
      hn::BitCast(di, hn::Sub(hn::Add(cut, c.shift), splat(bits::kFractionBits + 2)));
  const auto zero = hn::Zero(di), most = hn::Set(di, 31);
  const BitsVector left_shift = hn::BitCast(d, hn::Max(hn::Neg(right), zero));
  const BitsVector right_shift = hn::BitCast(d, hn::Min(hn::Max(right, zero), most));
  const BitsVector whole_shift = hn::BitCast(d, hn::Min(hn::Add(right, hn::Set(di, 32)), most));
  const BitsVector fraction = hn::Shr(hn::Shl(significand, left_shift), right_shift);
  const auto carry = hn::Lt(hn::Add(fraction, random), random);
  const BitsVector kept = hn::Sub(hn::Shr(significand, whole_shift), hn::VecFromMask(d, carry));

  const BitsVector unit = hn::Sub(
      place, hn::ShiftLeft<bits::kFractionBits>(hn::Sub(splat(bits::kFractionBits), c.shift)));
  const FloatVector rounded =
      hn::Mul(hn::ConvertTo(FloatTag(), hn::BitCast(di, kept)), as_float(unit));
  accumulate(scaled, rounded, energies);
  const auto vanished = hn::And(hn::Eq(kept, splat(0)), hn::Ne(magnitude, splat(0)));
  underflows = hn::Sub(underflows, hn::VecFromMask(d, vanished));
  const BitsVector code = hn::Add(kept, hn::Shr(hn::Sub(place, c.min_normal), c.shift));
  return with_sign<Out, kTwosComplement>(c, x, code, rounded, scale);
}

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace dovetail::mx
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
