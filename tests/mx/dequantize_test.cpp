#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/mx/quantize.h"
#include "tests/mx/blocks.h"

namespace dovetail::mx::dequantize_test {
namespace {

using dovetail::testing::at_every_simd_level;
using dovetail::testing::user_error;
using ::testing::HasSubstr;

constexpr Format kFormats[] = {Format::kE4M3, Format::kE5M2, Format::kE3M2,
                               Format::kE2M3, Format::kE2M1, Format::kInt8};

/// All 256 bytes as codes, each row under a scale of its own: (256, 256) and scales (256, 8).
MXTensor every_code_and_scale(Format format) {
  const at::Tensor bytes = at::arange(256, at::kByte);
  return {bytes.expand({256, 256}).contiguous(), bytes.view({256, 1}).expand({256, 8}).contiguous(),
          format, Orientation::kRow};
}

/// The same numbers lying down the columns.
MXTensor transposed(const MXTensor& x) {
  return {x.codes().t().contiguous(), x.scales().t().contiguous(), x.format(),
          Orientation::kColumn};
}

uint32_t float_bits(const at::Tensor& x, int64_t i) {
  return static_cast<const uint32_t*>(x.const_data_ptr())[i];
}
uint32_t bfloat_bits(const at::Tensor& x, int64_t i) {
  return static_cast<const uint16_t*>(x.const_data_ptr())[i];
}
bool is_nan(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }

/// The codec, which format_test holds against tables, says what every code under every scale is.
TEST(Dequantize, MatchesTheCodecForEveryCodeAndScaleWithAndWithoutSubnormalNumbers) {
  for (const bool flush : {false, true}) {
    const FlushDenormals flushing(flush);
    at_every_simd_level([] {
      for (const Format format : kFormats) {
        const MXTensor rows = every_code_and_scale(format);
        const at::Tensor y = dequantize(rows), short_y = dequantize(rows, at::kBFloat16);
        const at::Tensor down = dequantize(transposed(rows)).t().contiguous();
        for (int64_t i = 0; i < y.numel(); ++i) {
          const uint32_t expected = decode(static_cast<uint8_t>(i % 256), static_cast<int>(i / 256),
                                           element_spec(format));
          if (is_nan(expected)) {
            ASSERT_TRUE(is_nan(float_bits(y, i)) && is_nan(bfloat_bits(short_y, i) << 16))
                << name(format) << " " << i;
            continue;
          }
          ASSERT_EQ(float_bits(y, i), expected)
              << name(format) << " code " << i % 256 << " scale " << i / 256;
          ASSERT_EQ(bfloat_bits(short_y, i), round_to_bfloat16(expected))
              << name(format) << " " << i;
          ASSERT_EQ(float_bits(down, i), expected) << name(format) << " " << i;
        }
      }
    });
  }
}

TEST(Dequantize, UndoesWhatQuantizingDidNotRound) {
  at_every_simd_level([] {
    for (const auto& [rows, cols] : {std::pair(1, 1), {31, 33}, {65, 127}}) {
      // Small integers times a power of two a row: numbers of E4M3 whatever the block's scale.
      const at::Tensor integers = at::randint(-8, 9, {rows, cols}, at::kFloat);
      const at::Tensor x =
          integers * at::pow(2.0, at::arange(rows).remainder(3)).view({rows, 1}).to(at::kFloat);
      for (const Copies copies : {Copies::kRow, Copies::kColumn, Copies::kSquare}) {
        const Quantized q = quantize(x, {.copies = copies});
        const MXTensor& copy = copies == Copies::kRow      ? q.row
                               : copies == Copies::kColumn ? q.column
                                                           : q.square;
        EXPECT_TRUE(at::equal(dequantize(copy), x));
        EXPECT_TRUE(at::equal(dequantize(copy, at::kBFloat16).to(at::kFloat), x));
      }
    }
  });
}

TEST(Dequantize, MakesAPoisonedBlockNaNAndLeavesItsNeighbours) {
  at::Tensor x = at::ones({2, 64});
  x[1][40].fill_(INFINITY);
  const at::Tensor y = dequantize(quantize(x).row);
  EXPECT_TRUE(y[1].slice(0, 32).isnan().all().item<bool>());
  EXPECT_EQ(y.isnan().sum().item<int64_t>(), 32);
  const at::Tensor kept = dequantize(quantize(x, {.non_finite = NonFinite::kSaturate}).row);
  EXPECT_FALSE(kept.isnan().any().item<bool>());
  // The ones set the block's scale, 2^-8: the infinity becomes 448 of these.
  EXPECT_EQ(kept[1][40].item<float>(), 1.75F);
  EXPECT_EQ(kept[1][41].item<float>(), 1.0F);
}

TEST(Dequantize, RefusesOtherDtypesAndWrongScales) {
  const MXTensor x = quantize(at::ones({3, 40})).row;
  EXPECT_THAT(user_error([&] { dequantize(x, at::kHalf); }), HasSubstr("not Half"));
  EXPECT_THAT(user_error([] { dequantize(MXTensor{}); }), HasSubstr("undefined"));
  EXPECT_THAT(user_error([&] { MXTensor(x.codes(), x.codes(), Format::kE4M3, Orientation::kRow); }),
              HasSubstr("need scales [3, 2], but these are [3, 40]"));
  EXPECT_THAT(user_error([&] {
                MXTensor(x.codes().to(at::kFloat), x.scales(), Format::kE4M3, Orientation::kRow);
              }),
              HasSubstr("uint8"));
}

TEST(Pack, LaysSixBitCodesFourInThreeBytesAndFourBitCodesLowHalfFirst) {
  const at::Tensor six = at::tensor({0x01, 0x3f, 0x20, 0x15, 0x2a}, at::kByte);
  // 000001, 111111 << 6, 100000 << 12, 010101 << 18, then 101010 alone.
  EXPECT_TRUE(
      at::equal(pack_codes(six, Format::kE2M3), at::tensor({0xc1, 0x0f, 0x56, 0x2a}, at::kByte)));
  const at::Tensor four = at::tensor({0x1, 0xf, 0x8}, at::kByte);
  EXPECT_TRUE(at::equal(pack_codes(four, Format::kE2M1), at::tensor({0xf1, 0x08}, at::kByte)));
}

TEST(Pack, IsUndoneForEveryLength) {
  for (const Format format : kFormats) {
    const ElementSpec& spec = element_spec(format);
    for (const int64_t count : {0, 1, 2, 3, 4, 5, 31, 32, 33, 127}) {
      const at::Tensor codes = at::randint(0, 1 << spec.bits, {count}, at::kByte);
      const at::Tensor packed = pack_codes(codes, format);
      EXPECT_EQ(packed.numel(), (count * spec.bits + 7) / 8);
      EXPECT_TRUE(at::equal(unpack_codes(packed, format, {count}), codes))
          << name(format) << " " << count;
    }
  }
  const MXTensor x = quantize(at::ones({3, 40}), {.format = Format::kE3M2}).row;
  EXPECT_EQ(x.packed_bytes(), 90 + 6);
  EXPECT_EQ(unpack_codes(pack_codes(x.codes(), Format::kE3M2), Format::kE3M2, {3, 40}).sizes(),
            x.sizes());
  EXPECT_THAT(user_error([] { unpack_codes(at::zeros({4}, at::kByte), Format::kE2M1, {9}); }),
              HasSubstr("[9] codes of e2m1 take 5 bytes, but there are 4"));
}

}  // namespace
}  // namespace dovetail::mx::dequantize_test
