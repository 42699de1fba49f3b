#include "dovetail/mx/float8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dovetail/ops/simd_level.h"
#include "tests/mx/blocks.h"

// Scales and codes are held against torchao in tests/python/test_mx_float8.py.
namespace dovetail::mx::float8_test {
namespace {

using dovetail::testing::at_every_simd_level;
using dovetail::testing::user_error;
using ::testing::HasSubstr;

constexpr Format kFormats[] = {Format::kE4M3, Format::kE5M2};
constexpr Float8Blocks kAllBlocks[] = {Float8Blocks::kTensor, Float8Blocks::kRow,
                                       Float8Blocks::kColumn, Float8Blocks::kSquare};

/// The scale of the block that holds an element, from the definition.
float expected_scale(const at::Tensor& block, Format format, bool power_of_two) {
  const float amax = block.abs().max().item<float>();
  if (!std::isfinite(amax)) return std::numeric_limits<float>::quiet_NaN();
  float s =
      static_cast<float>(reference::numbers(format).back()) / std::max(amax, std::ldexp(1.0F, -80));
  if (power_of_two) s = std::ldexp(1.0F, std::ilogb(s));
  return s;
}

at::Tensor block_around(const at::Tensor& x, int64_t row, int64_t col, Float8Blocks blocks) {
  const auto part = [](const at::Tensor& t, int64_t dim, int64_t at, int64_t size) {
    const int64_t begin = at / size * size;
    return t.narrow(dim, begin, std::min(size, t.size(dim) - begin));
  };
  if (blocks == Float8Blocks::kTensor) return x;
  const int64_t rows = blocks == Float8Blocks::kRow ? 1 : 128,
                cols = blocks == Float8Blocks::kColumn ? 1 : 128;
  return part(part(x, 0, row, rows), 1, col, cols);
}

/// Codes, scales and values of every element from the definition; the values' dtype too.
void expect_right(const at::Tensor& x, const Float8Spec& spec_in) {
  Float8Spec spec = spec_in;
  spec.values = false;
  const Float8Tensor codes = quantize_float8(x, spec).tensor;
  const at::Tensor back = dequantize(codes);
  spec.values = true;
  const at::Tensor values = quantize_float8(x, spec).values;
  ASSERT_EQ(values.scalar_type(), spec.power_of_two ? x.scalar_type() : at::kFloat);
  ASSERT_TRUE(at::equal(values.to(at::kFloat).nan_to_num(-1), back.nan_to_num(-1)));
  const at::Tensor wide = x.to(at::kFloat).contiguous();
  for (int64_t row = 0; row < x.size(0); ++row) {
    for (int64_t col = 0; col < x.size(1); col += col < 3 || col > x.size(1) - 4 ? 1 : 29) {
      const float s =
          expected_scale(block_around(wide, row, col, spec.blocks), spec.format, spec.power_of_two);
      const uint8_t code = codes.codes[row][col].item<uint8_t>();
      if (std::isnan(s)) {
        ASSERT_EQ(code, 0);
        ASSERT_TRUE(std::isnan(back[row][col].item<float>()));
        continue;
      }
      const float scaled = wide[row][col].item<float>() * s;
      ASSERT_EQ(code, reference::code(std::bit_cast<uint32_t>(scaled), 127, spec.format))
          << row << " " << col;
      ASSERT_EQ(back[row][col].item<float>(),
                static_cast<float>(reference::decoded(code, spec.format)) * (1 / s));
    }
  }
}

TEST(Float8, MatchesItsDefinitionForEveryShapeOfBlockAndProcessor) {
  at_every_simd_level([] {
    uint64_t seed = 1;
    for (const auto& [rows, cols] : {std::pair(1, 1), {3, 127}, {129, 131}, {2, 2100}}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        for (const Format format : kFormats) {
          for (const Float8Blocks blocks : kAllBlocks) {
            for (const bool power_of_two : {false, true})
              expect_right(ordinary_values({rows, cols}, seed++, dtype),
                           {.format = format, .blocks = blocks, .power_of_two = power_of_two});
          }
        }
      }
    }
  });
}

TEST(Float8, IsTheSameWithoutSubnormalNumbersAndByTheCodec) {
  for (const Float8Blocks blocks : kAllBlocks) {
    for (const bool power_of_two : {false, true}) {
      const Float8Spec spec = {
          .format = Format::kE5M2, .blocks = blocks, .power_of_two = power_of_two};
      const at::Tensor x =
          adversarial_values({140, 150}, 3, spec.format, /*non_finite=*/true, at::kFloat);
      const Float8Tensor plain = quantize_float8(x, spec).tensor;
      const auto expect_same = [&](const Float8Tensor& other) {
        EXPECT_TRUE(at::equal(plain.codes, other.codes));
        EXPECT_TRUE(at::equal(plain.scales.nan_to_num(-1), other.scales.nan_to_num(-1)));
      };
      {
        const FlushDenormals flushing(true);
        expect_same(quantize_float8(x, spec).tensor);
      }
      ops::set_disabled_kernels("mx_quantize");
      expect_same(quantize_float8(x, spec).tensor);
      ops::set_disabled_kernels("");
    }
  }
}

TEST(Float8, TakesViewsAndMoreDimensions) {
  const at::Tensor x = ordinary_values({200, 6}, 5, at::kFloat);
  const Float8Spec rows = {.blocks = Float8Blocks::kRow},
                   columns = {.blocks = Float8Blocks::kColumn};
  const Float8Tensor turned = quantize_float8(x.t(), rows).tensor,
                     straight = quantize_float8(x, columns).tensor;
  EXPECT_TRUE(at::equal(turned.codes.t(), straight.codes));
  EXPECT_TRUE(at::equal(turned.scales.t(), straight.scales));
  EXPECT_EQ(straight.scales.sizes(), (std::vector<int64_t>{2, 6}));
  const Float8Tensor deep = quantize_float8(x.view({200, 2, 3}), columns).tensor;
  EXPECT_TRUE(at::equal(deep.codes.view({200, 6}), straight.codes));
  EXPECT_EQ(quantize_float8(at::empty({0, 5}), rows).tensor.codes.numel(), 0);
}

TEST(Float8, AMagnitudeFromOutsideSetsTheScaleAndSaturates) {
  const at::Tensor x = at::tensor({1.0F, 0.5F, -4.0F, 3.0F, 1e-9F});
  const Float8 made = quantize_float8(x, {.amax = at::scalar_tensor(2.0F), .values = true});
  EXPECT_TRUE(at::equal(made.values, at::tensor({1.0F, 0.5F, -2.0F, 2.0F, 0.0F})));
  EXPECT_EQ(made.statistics.saturations, 2);
  EXPECT_EQ(made.statistics.saturating_blocks, 1);
  EXPECT_EQ(made.statistics.underflows, 1);
  EXPECT_EQ(made.statistics.amax(), 4.0F);
  EXPECT_EQ(quantize_float8(x, {}).statistics.saturations, 0);
}

/// Returns true if two tensors have the same dtype and numbers, or NaN in the same places.
bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  return a.scalar_type() == b.scalar_type() && at::equal(a.isnan(), b.isnan()) &&
         at::equal(a.nan_to_num(-1), b.nan_to_num(-1));
}
bool same(const Float8Copy& a, const Float8Copy& b) {
  return same(a.tensor.codes, b.tensor.codes) && same(a.tensor.scales, b.tensor.scales) &&
         same(a.values, b.values);
}

void expect_second_as_alone(const at::Tensor& x, Float8Spec spec) {
  using Second = Float8Spec::Second;
  for (const auto& [values, second] : {std::pair(true, Second::kValues),
                                       {true, Second::kCodes},
                                       {false, Second::kCodes},
                                       {false, Second::kValues}}) {
    if (values == (second == Second::kValues) && spec.blocks != Float8Blocks::kRow)
      continue;  // it would be the first copy again
    spec.values = values;
    spec.second = second;
    const Float8 both = quantize_float8(x, spec);
    Float8Spec alone = spec;
    alone.second = Second::kNone;
    const Float8 first = quantize_float8(x, alone);
    EXPECT_TRUE(same(first, both));
    EXPECT_EQ(first.statistics.blocks, both.statistics.blocks);
    EXPECT_EQ(first.statistics.underflows, both.statistics.underflows);
    EXPECT_NEAR(first.statistics.signal, both.statistics.signal, 1e-4 * both.statistics.signal);
    EXPECT_EQ(first.statistics.elements, both.statistics.elements);
    if (spec.blocks == Float8Blocks::kRow) alone.blocks = Float8Blocks::kColumn;
    alone.values = second == Second::kValues;
    EXPECT_TRUE(same(quantize_float8(x, alone), both.second));
  }
}

TEST(Float8, ASecondCopyOfOneReadIsTheCopyMadeAlone) {
  at_every_simd_level([] {
    uint64_t seed = 20;
    for (const auto& [rows, cols] : {std::pair(1, 1), {127, 33}, {130, 1100}, {257, 2050}}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        for (const Float8Blocks blocks : {Float8Blocks::kRow, Float8Blocks::kTensor}) {
          for (const bool power_of_two : {false, true}) {
            at::Tensor x = ordinary_values({rows, cols}, seed++, dtype);
            expect_second_as_alone(x, {.blocks = blocks, .power_of_two = power_of_two});
            x[rows / 2][cols / 2] = std::numeric_limits<float>::infinity();
            x[rows - 1][cols - 1] = std::numeric_limits<float>::quiet_NaN();
            expect_second_as_alone(x, {.blocks = blocks, .power_of_two = power_of_two});
          }
        }
      }
    }
  });
}

TEST(Float8, ANanPoisonsItsBlockAlone) {
  at_every_simd_level([] {
    for (const Float8Blocks blocks : kAllBlocks) {
      at::Tensor x = ordinary_values({200, 1200}, 9, at::kBFloat16);
      const at::Tensor whole = quantize_float8(x, {.blocks = blocks, .values = true}).values;
      x[130][700] = std::numeric_limits<float>::quiet_NaN();
      const Float8 made = quantize_float8(x, {.blocks = blocks, .values = true});
      const at::Tensor poisoned = made.values.isnan();
      EXPECT_TRUE(poisoned[130][700].item<bool>());
      EXPECT_TRUE(at::equal(at::where(poisoned, 0, made.values), at::where(poisoned, 0, whole)));
      const int64_t expected = blocks == Float8Blocks::kTensor   ? 200 * 1200
                               : blocks == Float8Blocks::kRow    ? 128
                               : blocks == Float8Blocks::kColumn ? 72
                                                                 : 72 * 128;
      EXPECT_EQ(poisoned.sum().item<int64_t>(), expected);
      EXPECT_TRUE(std::isfinite(made.statistics.signal));
      EXPECT_EQ(made.statistics.non_finite_blocks, 1);
    }
  });
}

TEST(Float8, WideAndUnscaledNumbersAreTheSameNumbers) {
  at_every_simd_level([] {
    const at::Tensor x = ordinary_values({130, 77}, 11, at::kBFloat16);
    for (const Float8Blocks blocks : kAllBlocks) {
      Float8Spec spec = {.blocks = blocks, .power_of_two = true, .values = true};
      const at::Tensor narrow = quantize_float8(x, spec).values;
      spec.wide = true;
      const at::Tensor wide = quantize_float8(x, spec).values;
      EXPECT_EQ(wide.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(wide, narrow.to(at::kFloat)));
    }
    for (const Format format : kFormats) {
      const Float8 made = quantize_float8(x, {.format = format, .values = true, .unscaled = true});
      EXPECT_EQ(made.values.scalar_type(), at::kBFloat16);
      const at::Tensor scaled = quantize_float8(x, {.format = format, .values = true}).values;
      EXPECT_TRUE(at::equal(made.values.to(at::kFloat).mul(made.tensor.scales), scaled));
      const Float8Tensor codes = quantize_float8(x, {.format = format}).tensor;
      for (const auto dtype : {at::kFloat, at::kBFloat16})
        EXPECT_TRUE(at::equal(dequantize_unscaled(codes, dtype), made.values.to(dtype)));
    }
  });
}

TEST(Float8, DequantizesEveryCodeAndRoundsOnce) {
  at_every_simd_level([] {
    for (const Format format : kFormats) {
      const int64_t most = format == Format::kE4M3 ? 0x7e : 0x7b;
      const at::Tensor of_sign = at::arange(most + 1, at::kByte),
                       codes = at::cat({of_sign, of_sign.bitwise_or(0x80)}).repeat({3, 1});
      const at::Tensor scales = at::tensor({1.0F, 0x1.123456p-90F, 3.7F}).unsqueeze(1);
      const at::Tensor numbers = codes.view(float8_type(format)).to(at::kFloat).mul(scales);
      const Float8Tensor tensor = {codes, scales.expand({3, 2}).contiguous(), format,
                                   Float8Blocks::kRow};
      EXPECT_TRUE(at::equal(dequantize(tensor), numbers));
      EXPECT_TRUE(at::equal(dequantize(tensor, at::kBFloat16), numbers.to(at::kBFloat16)));
      const Float8Tensor turned = {codes.t().contiguous().narrow(0, 0, 100),
                                   scales.t().contiguous(), format, Float8Blocks::kColumn};
      EXPECT_TRUE(at::equal(dequantize(turned), numbers.t().narrow(0, 0, 100)));
    }
  });
}

TEST(Float8, CountsErrorsBesideTheSignal) {
  at_every_simd_level([] {
    for (const Float8Blocks blocks : kAllBlocks) {
      const at::Tensor x = ordinary_values({150, 2100}, 7, at::kFloat);
      Float8Spec spec = {.blocks = blocks, .values = true};
      const Float8 made = quantize_float8(x, spec);
      const double signal = x.to(at::kDouble).square().sum().item<double>();
      const double error =
          (x.to(at::kDouble) - made.values.to(at::kDouble)).square().sum().item<double>();
      EXPECT_NEAR(made.statistics.signal / signal, 1, 1e-4);
      EXPECT_NEAR(made.statistics.error / error, 1, 1e-3);
      EXPECT_EQ(made.statistics.elements, x.numel());
      EXPECT_EQ(made.statistics.underflows, (x.ne(0) & made.values.eq(0)).sum().item<int64_t>());
      spec.values = false;
      EXPECT_EQ(made.statistics.blocks, quantize_float8(x, spec).tensor.scales.numel());
    }
  });
}

TEST(Float8, WhatCannotBeIsNamed) {
  const at::Tensor x = at::ones({2, 3});
  EXPECT_THAT(user_error([&] { quantize_float8(x, {.format = Format::kE2M1}); }),
              HasSubstr("e2m1"));
  EXPECT_THAT(user_error([&] { quantize_float8(x.to(at::kHalf), {}); }), HasSubstr("Half"));
  EXPECT_THAT(
      user_error([&] { quantize_float8(at::ones({2, 3, 4}), {.blocks = Float8Blocks::kSquare}); }),
      HasSubstr("[2, 3, 4]"));
  const at::Tensor amax = at::ones({}, at::kFloat);
  EXPECT_THAT(user_error([&] { quantize_float8(x, {.blocks = Float8Blocks::kRow, .amax = amax}); }),
              HasSubstr("whole tensor"));
  EXPECT_THAT(user_error([&] { quantize_float8(x, {.amax = amax.to(at::kDouble)}); }),
              HasSubstr("float32 scalar"));
  EXPECT_THAT(
      user_error([&] { quantize_float8(x, {.blocks = Float8Blocks::kRow, .unscaled = true}); }),
      HasSubstr("only one scale"));
}

}  // namespace
}  // namespace dovetail::mx::float8_test
