#pragma once

#include <stdint.h>

#include "dovetail/base/host_device.h"

/// Encoding of one element and one scale of a microscaling (MX) format, in integer arithmetic
/// alone. In such a format, a block of 32 elements shares one scale, a power of two. Each element
/// is stored as a code of 4 to 8 bits: a small number, in units of the scale.
///
/// The functions are exact for subnormal numbers, even if the processor flushes them to zero or
/// treats them as zero. CPU and GPU give the same results. Tests compare the vector kernels with
/// these functions. The vector kernels call these functions for blocks that floating-point
/// arithmetic cannot encode exactly. Sources: OCP Microscaling Formats v1.0; scale rounding of
/// arXiv 2506.08027, algorithm 1.
namespace dovetail::mx {

/// Number of elements in a block. They share one scale 2^(byte - 127), stored as `byte` (E8M0).
constexpr int kBlock = 32;
/// Number of neighbours along a dimension of an FP8 block (float8.h).
constexpr int64_t kFloat8Block = 128;
/// Constants of scale bytes: exponent bias, byte of the largest scale, and byte that means NaN. A
/// block with a NaN or infinite element can be poisoned (NonFinite in format.h). A poisoned block
/// has scale NaN, so all its elements are NaN.
constexpr int kScaleBias = 127, kLargestScale = 254, kScaleNan = 255;

/// Constants of an element format. A magnitude code is a code without its sign: E << mantissa_bits
/// | m, with exponent field E and mantissa field m. It stands for the number
///   (2^mantissa_bits + m) * 2^(min_exponent + E - 1 - mantissa_bits) if E > 0,
///   m * 2^(min_exponent - mantissa_bits) if E = 0.
/// MXINT8 follows this formula with one exponent bit: magnitude code k stands for k * 2^-6. Its
/// negative numbers are stored in two's complement.
struct ElementSpec {
  int bits;               ///< bits of a code, including the sign
  int mantissa_bits;      ///< number of mantissa bits; E starts at this bit of a code
  int min_exponent;       ///< exponent of the smallest normal number: 1 - bias
  int max_exponent;       ///< exponent of the largest number
  uint32_t max_code;      ///< magnitude code of the largest number
  uint32_t max_fraction;  ///< the 23 fraction bits of the largest number as a float32
  bool twos_complement;   ///< true for MXINT8; all other formats are sign and magnitude
};

namespace bits {
constexpr uint32_t kSign = 0x80000000, kMagnitude = 0x7fffffff, kInfinity = 0x7f800000,
                   kFraction = 0x007fffff;
constexpr uint32_t kQuietNan = 0x7fc00000;
constexpr int kFractionBits = 23, kExponentBias = 127;
}  // namespace bits

/// Returns the format's largest number, as float32 bits.
DOVETAIL_HOST_DEVICE constexpr uint32_t largest_bits(const ElementSpec& spec) {
  return static_cast<uint32_t>(spec.max_exponent + bits::kExponentBias) << bits::kFractionBits |
         spec.max_fraction;
}

/// Finite magnitude of a float32: significand * 2^(exponent - 23), with the significand in [2^23,
/// 2^24). Zero has significand 0.
struct Magnitude {
  uint32_t significand;
  int exponent;
};

/// Splits the bits of a finite float32, sign bit clear, into significand and exponent.
DOVETAIL_HOST_DEVICE constexpr Magnitude normalize(uint32_t magnitude_bits) {
  uint32_t significand = magnitude_bits & bits::kFraction;
  int exponent = static_cast<int>(magnitude_bits >> bits::kFractionBits) - bits::kExponentBias;
  if (exponent > -bits::kExponentBias) return {significand | 1u << bits::kFractionBits, exponent};
  if (significand == 0) return {0, 0};
  ++exponent;
  while (significand >> bits::kFractionBits == 0) {
    significand <<= 1;
    --exponent;
  }
  return {significand, exponent};
}

/// Returns the scale byte of a block whose largest magnitude is `amax_bits` (float32, sign bit
/// clear). `addend` selects the rule for the scale (`scale_addend` in format.h). It is added to the
/// 23 fraction bits of the magnitude, and a carry raises the exponent by one. NaN and infinity give
/// 255.
DOVETAIL_HOST_DEVICE constexpr int scale_byte(uint32_t amax_bits, const ElementSpec& spec,
                                              uint32_t addend) {
  if (amax_bits >= bits::kInfinity) return kScaleNan;
  const Magnitude amax = normalize(amax_bits);
  if (amax.significand == 0) return 0;
  const uint32_t fraction = amax.significand & bits::kFraction;
  const int carry = static_cast<int>((fraction + addend) >> bits::kFractionBits);
  const int byte = amax.exponent + carry - spec.max_exponent + kScaleBias;
  return byte < 0 ? 0 : byte > kLargestScale ? kLargestScale : byte;
}

/// Returns true if a number (float32 bits, sign bit clear) saturates: it exceeds the format's
/// largest number times the scale. `scale` is the scale's byte.
DOVETAIL_HOST_DEVICE constexpr bool saturates(uint32_t magnitude_bits, int scale,
                                              const ElementSpec& spec) {
  const Magnitude x = normalize(magnitude_bits);
  const int exponent = x.exponent - (scale - kScaleBias);
  if (x.significand == 0 || exponent != spec.max_exponent)
    return x.significand != 0 && exponent > spec.max_exponent;
  return (x.significand & bits::kFraction) > spec.max_fraction;
}

/// Shifts a significand right by `shift` bits, rounding to nearest, ties to even.
DOVETAIL_HOST_DEVICE constexpr uint32_t shift_to_nearest(uint32_t significand, int shift) {
  if (shift > bits::kFractionBits + 1) return 0;  // below half of the last place
  const uint32_t half = 1u << (shift - 1), kept = significand >> shift,
                 rest = significand & ((half << 1) - 1);
  return kept + (rest > half || (rest == half && (kept & 1)) ? 1 : 0);
}

/// Shifts a significand right by `shift` bits with stochastic rounding. The probability of rounding
/// up is the fraction that the shift cuts off, to within 2^-32. `random` is uniform over 32 bits.
DOVETAIL_HOST_DEVICE constexpr uint32_t shift_at_random(uint32_t significand, int shift,
                                                        uint32_t random) {
  const uint64_t fixed = shift > 63 ? 0 : (static_cast<uint64_t>(significand) << 32) >> shift;
  return static_cast<uint32_t>((fixed + random) >> 32);
}

/// Rounding of an element: stochastic, or to nearest even. `random`, uniform over 32 bits, is read
/// only if `stochastic` is set.
struct ElementRounding {
  bool stochastic = false;
  uint32_t random = 0;
};

/// Returns the magnitude code of a number (float32 bits, sign bit clear) in a block with scale byte
/// `scale`. The number is divided by 2^(scale - 127), rounded and saturated. NaN and infinity
/// saturate, too.
DOVETAIL_HOST_DEVICE constexpr uint32_t encode_magnitude(uint32_t magnitude_bits, int scale,
                                                         const ElementSpec& spec,
                                                         ElementRounding rounding = {}) {
  if (magnitude_bits >= bits::kInfinity) return spec.max_code;
  const Magnitude x = normalize(magnitude_bits);
  if (x.significand == 0) return 0;
  const int exponent = x.exponent - (scale - kScaleBias);
  if (exponent > spec.max_exponent) return spec.max_code;
  const int place = exponent > spec.min_exponent ? exponent : spec.min_exponent;
  const int shift = bits::kFractionBits - spec.mantissa_bits + (place - exponent);
  const uint32_t kept = rounding.stochastic ? shift_at_random(x.significand, shift, rounding.random)
                                            : shift_to_nearest(x.significand, shift);
  // `kept` includes the leading one of a normal number. So rounding up into the next binade gives
  // the right code.
  const uint32_t code =
      (static_cast<uint32_t>(place - spec.min_exponent) << spec.mantissa_bits) + kept;
  return code < spec.max_code ? code : spec.max_code;
}

/// Returns an element's code: its magnitude code with a sign. MXINT8 has no negative zero.
DOVETAIL_HOST_DEVICE constexpr uint8_t signed_code(uint32_t code, bool negative,
                                                   const ElementSpec& spec) {
  if (!negative) return static_cast<uint8_t>(code);
  if (spec.twos_complement) return static_cast<uint8_t>(0u - code);
  return static_cast<uint8_t>(code | 1u << (spec.bits - 1));
}

/// Returns the code of a float32, given as bits, in a block with scale byte `scale`. NaN and
/// infinity saturate.
DOVETAIL_HOST_DEVICE constexpr uint8_t encode(uint32_t float_bits, int scale,
                                              const ElementSpec& spec,
                                              ElementRounding rounding = {}) {
  const uint32_t code = encode_magnitude(float_bits & bits::kMagnitude, scale, spec, rounding);
  return signed_code(code, (float_bits & bits::kSign) != 0, spec);
}

/// Returns significand * 2^exponent as float32 bits, for a significand < 2^24. Numbers down to
/// 2^-149 are exact, which covers every format with every scale. Numbers from 2^128 on become
/// infinity.
DOVETAIL_HOST_DEVICE constexpr uint32_t assemble(uint32_t significand, int exponent) {
  if (significand == 0) return 0;
  while (significand >> bits::kFractionBits == 0 && exponent > -149) {
    significand <<= 1;
    --exponent;
  }
  if (significand >> bits::kFractionBits == 0) return significand;  // subnormal, exponent -149
  const int field = exponent + bits::kFractionBits + bits::kExponentBias;
  if (field >= 255) return bits::kInfinity;
  return static_cast<uint32_t>(field) << bits::kFractionBits | (significand & bits::kFraction);
}

/// Returns the number that a code stands for in a block with scale byte `scale`, as float32 bits.
/// Bits above `spec.bits` are ignored. Code 0x7f of E4M3 and codes from 0x7c of E5M2 stand for NaN
/// or infinity; `encode` never returns them. Under scale 255, every code stands for NaN.
DOVETAIL_HOST_DEVICE constexpr uint32_t decode(uint8_t code, int scale, const ElementSpec& spec) {
  const uint32_t top = 1u << (spec.bits - 1);
  const bool negative = (code & top) != 0;
  uint32_t magnitude = code & (top - 1);
  if (spec.twos_complement && negative) magnitude = top - magnitude;
  const uint32_t sign = negative ? bits::kSign : 0;
  if (scale == kScaleNan) return bits::kQuietNan;
  const uint32_t field = magnitude >> spec.mantissa_bits,
                 low = magnitude & ((1u << spec.mantissa_bits) - 1);
  if (magnitude > spec.max_code && !spec.twos_complement)
    return sign | bits::kInfinity | low << (bits::kFractionBits - spec.mantissa_bits);
  const int unit = spec.min_exponent - spec.mantissa_bits + scale - kScaleBias;
  if (field == 0 || spec.twos_complement) return sign | assemble(magnitude, unit);
  return sign | assemble(low | 1u << spec.mantissa_bits, unit + static_cast<int>(field) - 1);
}

/// Rounds a float32, given as bits, to the nearest bfloat16, ties to even. Meant for results of
/// `decode`. Subnormal numbers are rounded like normal ones. Infinity stays infinite, and NaN stays
/// NaN.
DOVETAIL_HOST_DEVICE constexpr uint16_t round_to_bfloat16(uint32_t float_bits) {
  if ((float_bits & bits::kMagnitude) > bits::kInfinity)
    return static_cast<uint16_t>(float_bits >> 16 | 0x40);
  return static_cast<uint16_t>((float_bits + 0x7fff + (float_bits >> 16 & 1)) >> 16);
}

}  // namespace dovetail::mx
