#include "dovetail/mx/format.h"

#include <algorithm>
#include <array>
#include <bit>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/enum_names.h"

namespace dovetail::mx {

namespace {

constexpr uint32_t kThreeQuarters = 0x600000, kSevenEighths = 0x700000, kHalf = 0x400000;
constexpr uint32_t kLastOfInt8 = 0x7e0000;  // 63/64

constexpr std::array<ElementSpec, 6> kSpecs = {{
    {.bits = 8,
     .mantissa_bits = 3,
     .min_exponent = -6,
     .max_exponent = 8,
     .max_code = 0x7e,
     .max_fraction = kThreeQuarters,
     .twos_complement = false},
    {.bits = 8,
     .mantissa_bits = 2,
     .min_exponent = -14,
     .max_exponent = 15,
     .max_code = 0x7b,
     .max_fraction = kThreeQuarters,
     .twos_complement = false},
    {.bits = 6,
     .mantissa_bits = 2,
     .min_exponent = -2,
     .max_exponent = 4,
     .max_code = 0x1f,
     .max_fraction = kThreeQuarters,
     .twos_complement = false},
    {.bits = 6,
     .mantissa_bits = 3,
     .min_exponent = 0,
     .max_exponent = 2,
     .max_code = 0x1f,
     .max_fraction = kSevenEighths,
     .twos_complement = false},
    {.bits = 4,
     .mantissa_bits = 1,
     .min_exponent = 0,
     .max_exponent = 2,
     .max_code = 0x7,
     .max_fraction = kHalf,
     .twos_complement = false},
    {.bits = 8,
     .mantissa_bits = 6,
     .min_exponent = 0,
     .max_exponent = 0,
     .max_code = 0x7f,
     .max_fraction = kLastOfInt8,
     .twos_complement = true},
}};

constexpr std::array<std::string_view, 6> kFormatNames = {"e4m3", "e5m2", "e3m2",
                                                          "e2m3", "e2m1", "mxint8"};
constexpr std::array<std::string_view, 4> kScaleModeNames = {"round_up", "floor", "ceil", "even"};
constexpr std::array<std::string_view, 2> kNonFiniteNames = {"poison", "saturate"};
constexpr std::array<std::string_view, 2> kRoundingNames = {"nearest_even", "stochastic"};

}  // namespace

const ElementSpec& element_spec(Format format) { return kSpecs[static_cast<size_t>(format)]; }

float largest_number(Format format) {
  return std::bit_cast<float>(largest_bits(element_spec(format)));
}

uint32_t scale_addend(const ElementSpec& spec, ScaleMode mode) {
  switch (mode) {
    case ScaleMode::kRoundUp:
      // Carries if the fraction exceeds the largest number's.
      return bits::kFraction - spec.max_fraction;
    case ScaleMode::kFloor:
      return 0;
    case ScaleMode::kCeil:
      return bits::kFraction;
    case ScaleMode::kEven:
      return 1u << (bits::kFractionBits - spec.mantissa_bits - 1);
  }
  DOVETAIL_CHECK(false, "no scale mode has the number {}", static_cast<int>(mode));
  return 0;
}

int smallest_exact_bfloat16_exponent(Format format) {
  constexpr int kSmallestBFloat16 = -133;
  const ElementSpec& spec = element_spec(format);
  return std::max(kSmallestBFloat16 - (spec.min_exponent - spec.mantissa_bits), -kScaleBias);
}

std::string_view name(Format format) { return kFormatNames[static_cast<size_t>(format)]; }
std::string_view name(ScaleMode mode) { return kScaleModeNames[static_cast<size_t>(mode)]; }
std::string_view name(NonFinite non_finite) {
  return kNonFiniteNames[static_cast<size_t>(non_finite)];
}
std::string_view name(Rounding rounding) { return kRoundingNames[static_cast<size_t>(rounding)]; }

Format parse_format(std::string_view text) {
  return parse_enum<Format>("mx", "format", text, kFormatNames);
}
ScaleMode parse_scale_mode(std::string_view text) {
  return parse_enum<ScaleMode>("mx", "scale mode", text, kScaleModeNames);
}
NonFinite parse_non_finite(std::string_view text) {
  return parse_enum<NonFinite>("mx", "treatment of non-finite blocks", text, kNonFiniteNames);
}
Rounding parse_rounding(std::string_view text) {
  return parse_enum<Rounding>("mx", "rounding", text, kRoundingNames);
}

}  // namespace dovetail::mx
