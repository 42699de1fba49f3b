#include "dovetail/mx/format.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/mx/reference.h"
#include "tests/ops/testing.h"

namespace dovetail::mx::format_test {
namespace {

using dovetail::testing::user_error;
using ::testing::HasSubstr;

constexpr Format kFormats[] = {Format::kE4M3, Format::kE5M2, Format::kE3M2,
                               Format::kE2M3, Format::kE2M1, Format::kInt8};
constexpr ScaleMode kModes[] = {ScaleMode::kRoundUp, ScaleMode::kFloor, ScaleMode::kCeil,
                                ScaleMode::kEven};

TEST(Format, HasTheLargestNumberOfItsName) {
  const double expected[] = {448, 57344, 28, 7.5, 6, 127.0 / 64};
  for (size_t i = 0; i < 6; ++i) {
    const ElementSpec& spec = element_spec(kFormats[i]);
    EXPECT_EQ(reference::numbers(kFormats[i]).back(), expected[i]);
    EXPECT_EQ(reference::value(decode(static_cast<uint8_t>(spec.max_code), 127, spec)),
              expected[i]);
  }
}

TEST(Format, NamesAreReadBackAndOthersRefusedListingThem) {
  for (const Format format : kFormats) EXPECT_EQ(parse_format(name(format)), format);
  for (const ScaleMode mode : kModes) EXPECT_EQ(parse_scale_mode(name(mode)), mode);
  EXPECT_EQ(parse_format("E4M3"), Format::kE4M3);
  EXPECT_EQ(parse_format("MXINT8"), Format::kInt8);
  EXPECT_EQ(parse_non_finite(name(NonFinite::kPoison)), NonFinite::kPoison);
  EXPECT_EQ(parse_non_finite(name(NonFinite::kSaturate)), NonFinite::kSaturate);
  EXPECT_EQ(parse_rounding(name(Rounding::kNearestEven)), Rounding::kNearestEven);
  EXPECT_EQ(parse_rounding(name(Rounding::kStochastic)), Rounding::kStochastic);
  EXPECT_THAT(user_error([] { parse_format("e4m4"); }),
              HasSubstr("\"e4m4\"; valid are e4m3, e5m2, e3m2, e2m3, e2m1"));
  EXPECT_THAT(user_error([] { parse_scale_mode("up"); }),
              HasSubstr("valid are round_up, floor, ceil, even"));
  EXPECT_THAT(user_error([] { parse_non_finite("ignore"); }),
              HasSubstr("valid are poison, saturate"));
  EXPECT_THAT(user_error([] { parse_rounding(""); }),
              HasSubstr("valid are nearest_even, stochastic"));
}

/// Where scales change (a format's largest number and the powers of two, times every power of two),
/// and one ulp beside.
std::vector<uint32_t> maxima_of(Format format) {
  std::vector<uint32_t> found = {0, 1, 2, 3};
  const uint32_t fractions[] = {0, 0x400000, element_spec(format).max_fraction,
                                (1u << (22 - element_spec(format).mantissa_bits))};
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const uint32_t fraction : fractions) {
      for (const uint32_t step : {0xffffffffu, 0u, 1u}) {
        const uint32_t bits = (exponent << 23 | fraction) + step;
        if (bits < 0x7f800000) found.push_back(bits);
      }
    }
  }
  for (uint32_t bit = 0; bit < 23; ++bit) found.push_back(1u << bit | 1u);
  return found;
}

TEST(Codec, ScalesFollowTheirDefinitionAtEveryEdge) {
  for (const Format format : kFormats) {
    for (const ScaleMode mode : kModes) {
      const ElementSpec& spec = element_spec(format);
      for (const uint32_t amax : maxima_of(format))
        ASSERT_EQ(scale_byte(amax, spec, scale_addend(spec, mode)),
                  reference::scale(reference::value(amax), format, mode))
            << name(format) << " " << name(mode) << " " << std::hex << amax;
      EXPECT_EQ(scale_byte(0x7f800000, spec, scale_addend(spec, mode)), 255);
      EXPECT_EQ(scale_byte(0x7fc00000, spec, scale_addend(spec, mode)), 255);
    }
  }
}

TEST(Codec, ElementsFollowTheirDefinitionForEveryBFloat16AndBesideEveryMidpoint) {
  for (const Format format : kFormats) {
    const ElementSpec& spec = element_spec(format);
    std::vector<uint32_t> inputs;
    for (uint32_t high = 0; high < 0x7f80; high += 3) inputs.push_back(high << 16);
    const auto table = reference::numbers(format);
    for (size_t i = 0; i + 1 < table.size(); ++i) {
      for (const double x : {table[i], (table[i] + table[i + 1]) / 2}) {
        const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x));
        for (const uint32_t step : {0xffffffffu, 0u, 1u})
          inputs.push_back((bits + step) & 0x7fffffff);
      }
    }
    for (const uint32_t x : inputs) {
      for (const uint32_t sign : {0u, 0x80000000u})
        ASSERT_EQ(encode(x | sign, 127, spec), reference::code(x | sign, 127, format))
            << name(format) << std::hex << x;
    }
  }
}

TEST(Codec, StochasticElementsGoUpWithTheProbabilityOfWhatIsCutOff) {
  for (const Format format : kFormats) {
    const ElementSpec& spec = element_spec(format);
    for (const uint32_t x :
         {0x3f900001u, 0x3f8fffffu, 0x3e123456u, 0x33000001u, 0x00000001u, 0x40555555u}) {
      for (const int64_t random :
           {int64_t{0}, int64_t{1} << 31, (int64_t{1} << 32) - 1, int64_t{0x12345678}}) {
        for (const int scale : {127, 126, 110}) {
          const ElementRounding rounding{true, static_cast<uint32_t>(random)};
          ASSERT_EQ(encode(x, scale, spec, rounding), reference::code(x, scale, format, random))
              << name(format) << " " << std::hex << x << " " << random << " " << std::dec << scale;
        }
      }
    }
  }
}

/// Every code under every scale, against the table in double.
TEST(Codec, DecodesEveryCodeUnderEveryScale) {
  for (const Format format : kFormats) {
    const ElementSpec& spec = element_spec(format);
    const size_t top = size_t{1} << (spec.bits - 1), count = reference::numbers(format).size();
    for (size_t code = 0; code < 2 * top; ++code) {
      if (format != Format::kInt8 && code % top >= count) continue;
      const double unscaled = reference::decoded(static_cast<uint8_t>(code), format);
      for (int scale = 0; scale < 255; ++scale) {
        const double expected = std::ldexp(unscaled, scale - 127);
        const uint32_t bits = decode(static_cast<uint8_t>(code), scale, spec);
        if (std::abs(expected) >= 0x1p128) {
          ASSERT_EQ(bits & 0x7fffffff, 0x7f800000U);
        } else {
          ASSERT_EQ(reference::value(bits), expected)
              << name(format) << " " << code << " " << scale;
        }
        ASSERT_EQ(bits >> 31, std::signbit(expected) ? 1U : 0U);
      }
      ASSERT_FALSE(reference::finite(decode(static_cast<uint8_t>(code), 255, spec)));
    }
  }
  const ElementSpec &e4m3 = element_spec(Format::kE4M3), &e5m2 = element_spec(Format::kE5M2);
  EXPECT_EQ(decode(0x7f, 127, e4m3) & 0x7f800000, 0x7f800000U);
  EXPECT_NE(decode(0x7f, 127, e4m3) & 0x007fffff, 0U);
  EXPECT_EQ(decode(0xfc, 127, e5m2), 0xff800000U);
  EXPECT_NE(decode(0x7d, 127, e5m2) & 0x007fffff, 0U);
}

/// The sentence at `smallest_exact_bfloat16_exponent`: exact from there on, and not below.
TEST(Codec, BFloat16IsExactFromTheSaidScaleOn) {
  for (const Format format : kFormats) {
    const ElementSpec& spec = element_spec(format);
    const auto is_exact = [&](int exponent) {
      for (size_t code = 0; code < reference::numbers(format).size(); ++code) {
        const uint32_t bits = decode(static_cast<uint8_t>(code), exponent + 127, spec);
        if (static_cast<uint32_t>(round_to_bfloat16(bits)) << 16 != bits) return false;
      }
      return true;
    };
    const int smallest = smallest_exact_bfloat16_exponent(format);
    for (int exponent = smallest; exponent <= 127; ++exponent)
      EXPECT_TRUE(is_exact(exponent)) << name(format);
    for (int exponent = -127; exponent < smallest; ++exponent)
      EXPECT_FALSE(is_exact(exponent)) << name(format);
  }
  EXPECT_EQ(smallest_exact_bfloat16_exponent(Format::kE4M3), -124);
}

}  // namespace
}  // namespace dovetail::mx::format_test
