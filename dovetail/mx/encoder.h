#pragma once

#include <stdint.h>

#include "dovetail/mx/codec.h"

namespace dovetail::mx {

/// Constants of a format for rounding by addition. `encode` in quantize_inl.h describes the method.
/// - shift: number of float32 fraction bits that the format's mantissa lacks.
/// - min_normal, max_bits: smallest normal and largest number of the format, as float32 bits.
/// - code_mask: mask of the magnitude code within a code.
/// - sign_shift: right shift from the sign bit of a float32 to the sign bit of a code.
/// - magic: the exponent bits of an element plus `magic` are the bits of a float32 number. Adding
///   this number to the element rounds the element.
struct Encoder {
  explicit Encoder(const ElementSpec& spec)
      : shift(static_cast<uint32_t>(bits::kFractionBits - spec.mantissa_bits)),
        min_normal(static_cast<uint32_t>(spec.min_exponent + bits::kExponentBias)
                   << bits::kFractionBits),
        code_mask((1u << (spec.bits - 1)) - 1),
        sign_shift(static_cast<uint32_t>(32 - spec.bits)),
        max_bits(largest_bits(spec)),
        magic((shift << bits::kFractionBits) + ((0u - (min_normal >> shift)) & 0xff)) {}
  uint32_t shift, min_normal, code_mask, sign_shift, max_bits, magic;
};

}  // namespace dovetail::mx
