#include "dovetail/mx/nvfp4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/ops/simd_level.h"
#include "tests/mx/blocks.h"

// Codes and scales are held against torchao in tests/python/test_mx_nvfp4.py.
namespace dovetail::mx::nvfp4_test {
namespace {

using dovetail::testing::at_every_simd_level;
using dovetail::testing::user_error;
using ::testing::HasSubstr;

/// Quantizes with codec.h alone.
Nvfp4 exactly(const at::Tensor& x, const Nvfp4Spec& spec) {
  ops::set_disabled_kernels("mx_quantize");
  Nvfp4 made = quantize_nvfp4(x, spec);
  ops::set_disabled_kernels("");
  return made;
}

void expect_same(const Nvfp4& a, const Nvfp4& b, bool values) {
  ASSERT_TRUE(at::equal(a.tensor.scales, b.tensor.scales));
  if (values) {
    ASSERT_EQ(bits_of_tensor(a.values.nan_to_num(-1)), bits_of_tensor(b.values.nan_to_num(-1)));
  } else {
    ASSERT_TRUE(at::equal(a.tensor.codes, b.tensor.codes));
  }
  const Statistics &s = a.statistics, &e = b.statistics;
  EXPECT_EQ(s.elements, e.elements);
  EXPECT_EQ(s.blocks, e.blocks);
  EXPECT_EQ(s.zero_blocks, e.zero_blocks);
  EXPECT_EQ(s.non_finite_blocks, e.non_finite_blocks);
  EXPECT_EQ(s.underflows, e.underflows);
  EXPECT_EQ(s.saturations, e.saturations);
  EXPECT_EQ(s.saturating_blocks, e.saturating_blocks);
  EXPECT_EQ(s.floor_saturated_blocks, e.floor_saturated_blocks);
  EXPECT_EQ(s.amax_bits, e.amax_bits);
  EXPECT_EQ(s.min_scale, e.min_scale);
  EXPECT_EQ(s.max_scale, e.max_scale);
  EXPECT_NEAR(s.signal, e.signal, 1e-5 * e.signal);
  EXPECT_NEAR(s.error, e.error, 1e-5 * e.error);
}

TEST(Nvfp4, EveryProcessorGivesTheCodecsBitsAndCounts) {
  at_every_simd_level([] {
    uint64_t seed = 1;
    for (const auto& [rows, cols] : {std::pair(1, 1), {3, 127}, {33, 131}, {17, 2100}}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        for (const Nvfp4Blocks blocks :
             {Nvfp4Blocks::kRow, Nvfp4Blocks::kColumn, Nvfp4Blocks::kSquare}) {
          for (const bool values : {false, true}) {
            for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
              for (const NonFinite non_finite : {NonFinite::kPoison, NonFinite::kSaturate}) {
                const at::Tensor x = ordinary_values({rows, cols}, seed++, dtype);
                if (cols > 100) {
                  x[rows / 2][5] = std::numeric_limits<float>::infinity();
                  x[0][77] = std::numeric_limits<float>::quiet_NaN();
                  x[0][3] = 1e-41;
                }
                const Nvfp4Spec spec = {.blocks = blocks,
                                        .non_finite = non_finite,
                                        .rounding = rounding,
                                        .seed = seed,
                                        .values = values};
                expect_same(quantize_nvfp4(x, spec), exactly(x, spec), values);
              }
            }
          }
        }
      }
    }
  });
}

TEST(Nvfp4, ValuesAreNumbersWithoutTheTensorScale) {
  const at::Tensor x = ordinary_values({40, 50}, 3, at::kBFloat16);
  for (const Nvfp4Blocks blocks : {Nvfp4Blocks::kRow, Nvfp4Blocks::kColumn, Nvfp4Blocks::kSquare}) {
    Nvfp4Tensor codes = quantize_nvfp4(x, {.blocks = blocks}).tensor;
    codes.tensor_scale = at::Tensor();
    const at::Tensor values = quantize_nvfp4(x, {.blocks = blocks, .values = true}).values;
    EXPECT_EQ(values.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(values.to(at::kFloat), dequantize(codes)));
  }
}

TEST(Nvfp4, ColumnsAreTheRowsOfTheTranspose) {
  const at::Tensor x = ordinary_values({50, 33}, 4, at::kFloat);
  const Nvfp4Tensor column = quantize_nvfp4(x, {.blocks = Nvfp4Blocks::kColumn}).tensor,
                    row = quantize_nvfp4(x.t(), {}).tensor;
  EXPECT_TRUE(at::equal(column.codes.t(), row.codes));
  EXPECT_TRUE(at::equal(column.scales.t(), row.scales));
}

TEST(Nvfp4, EveryProcessorTransformsAlike) {
  const at::Tensor x = ordinary_values({37, 2061}, 5, at::kBFloat16);
  ops::set_disabled_kernels("mx_quantize");
  const at::Tensor expected = random_hadamard(x, 9);
  ops::set_disabled_kernels("");
  at_every_simd_level([&] { EXPECT_TRUE(at::equal(random_hadamard(x, 9), expected)); });
}

TEST(Nvfp4, RefusesWhatItCannotQuantize) {
  EXPECT_THAT(user_error([] { quantize_nvfp4(at::ones({2}, at::kHalf)); }), HasSubstr("Half"));
  EXPECT_THAT(user_error([] { quantize_nvfp4(at::ones({2}, at::device(at::kMeta))); }),
              HasSubstr("CPU"));
  EXPECT_THAT(
      user_error([] { quantize_nvfp4(at::ones({2, 3, 4}), {.blocks = Nvfp4Blocks::kSquare}); }),
      HasSubstr("two dimensions"));
  EXPECT_THAT(user_error([] { quantize_nvfp4(at::ones({2}), {.tensor_scale = at::ones({})}); }),
              HasSubstr("tensor scale"));
  EXPECT_THAT(user_error([] {
                quantize_nvfp4(at::ones({2}), {.scaling = TensorScale::kGiven,
                                               .tensor_scale = at::full({}, 1e-30F)});
              }),
              HasSubstr("between"));
}

}  // namespace
}  // namespace dovetail::mx::nvfp4_test
