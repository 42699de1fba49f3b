#include "dovetail/embedding/pack/row_format.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "dovetail/embedding/ranks/table_placement.h"
#include "dovetail/mx/quantize.h"
#include "tests/embedding/testing.h"

namespace dovetail::embedding::row_format_test {
namespace {

using dovetail::testing::expect_close;
using dovetail::testing::expect_same_bits;
using dovetail::testing::normal;
using dovetail::testing::user_error;
using ::testing::HasSubstr;
using testing::random_batch;
using testing::Reference;

constexpr RowDtype kLow[] = {RowDtype::kBFloat16, RowDtype::kMXFP8};

std::vector<float> through(RowDtype dtype, const std::vector<float>& values,
                           const RowWords& words) {
  const auto dim = static_cast<int64_t>(values.size());
  std::vector<char> stored(static_cast<size_t>(row_bytes(dtype, dim)));
  encode_row(dtype, values.data(), dim, words, stored.data());
  std::vector<float> found(values.size());
  decode_row(dtype, stored.data(), dim, found.data());
  return found;
}

/// Returns the two neighbours of x in a format, in double. The format has this number of fraction
/// bits and this minimum exponent.
std::pair<double, double> neighbours(double x, int fraction_bits, int smallest_exponent) {
  const int exponent = x == 0 ? smallest_exponent : std::max(std::ilogb(x), smallest_exponent);
  const double place = std::ldexp(1.0, exponent - fraction_bits);
  return {std::floor(x / place) * place, std::ceil(x / place) * place};
}

/// The exponent of a block's scale: the smallest with amax / 2^X <= 448.
int scale_exponent(const std::vector<float>& row, size_t block) {
  double amax = 0;
  for (size_t i = 32 * block; i < std::min(row.size(), 32 * block + 32); ++i)
    amax = std::max(amax, std::abs(static_cast<double>(row[i])));
  return static_cast<int>(std::ceil(std::log2(amax / 448)));
}

std::vector<float> row_of(int64_t dim, uint64_t seed) {
  const at::Tensor x = normal({dim}, seed) * 0.1;
  std::vector<float> row(x.const_data_ptr<float>(), x.const_data_ptr<float>() + dim);
  if (dim > 3) row[3] = 0;
  if (dim > 5) row[5] = 1e-4f;  // subnormal in E4M3
  return row;
}

TEST(RowFormat, EveryElementBecomesANeighbourAndTheMeanIsItself) {
  constexpr uint64_t kDraws = 4000;
  for (const RowDtype dtype : kLow) {
    for (const int64_t dim : {1, 7, 32, 33, 70}) {
      const std::vector<float> row = row_of(dim, 1);
      std::vector<double> sums(row.size(), 0);
      std::vector<std::pair<double, double>> near;
      for (size_t i = 0; i < row.size(); ++i) {
        if (dtype == RowDtype::kBFloat16) {
          near.push_back(neighbours(row[i], 7, -126));
        } else {
          const double scale = std::ldexp(1.0, scale_exponent(row, i / 32));
          const auto [low, high] = neighbours(row[i] / scale, 3, -6);
          near.emplace_back(low * scale, high * scale);
        }
      }
      for (uint64_t draw = 0; draw < kDraws; ++draw) {
        const std::vector<float> found = through(dtype, row, {.key = 5, .row = draw});
        for (size_t i = 0; i < row.size(); ++i) {
          ASSERT_TRUE(found[i] == near[i].first || found[i] == near[i].second)
              << name(dtype) << " " << dim << " element " << i << ": " << row[i] << " became "
              << found[i];
          sums[i] += found[i];
        }
      }
      for (size_t i = 0; i < row.size(); ++i) {
        const auto [low, high] = near[i];
        const double standard_error = std::sqrt((row[i] - low) * (high - row[i]) / kDraws);
        EXPECT_NEAR(sums[i] / kDraws, row[i], 5 * standard_error)
            << name(dtype) << " element " << i;
      }
    }
  }
}

TEST(RowFormat, WhatTheFormatHasStaysAsItIs) {
  for (const RowDtype dtype : kLow) {
    const std::vector<float> once = through(dtype, row_of(70, 2), {.key = 1, .row = 2});
    EXPECT_EQ(through(dtype, once, {.key = 9, .row = 9}), once) << name(dtype);
  }
}

TEST(RowFormat, MXFP8IsThatOfQuantize) {
  // Values that E4M3 represents exactly under their scales, so that no rounding remains.
  const at::Tensor x = mx::dequantize(mx::quantize(normal({5, 70}, 3)).row);
  const mx::MXTensor whole = mx::quantize(x).row;
  for (int64_t r = 0; r < 5; ++r) {
    const at::Tensor stored = at::empty({70 + 3}, at::kByte), row = x[r].contiguous();
    encode_row(RowDtype::kMXFP8, row.const_data_ptr<float>(), 70, {.key = 1},
               stored.mutable_data_ptr());
    expect_same_bits(stored.narrow(0, 70, 3), whole.scales()[r]);
    at::Tensor back = at::empty({70}, at::kFloat);
    decode_row(RowDtype::kMXFP8, stored.const_data_ptr(), 70, back.mutable_data_ptr<float>());
    expect_same_bits(back, row);
  }
}

TEST(RowFormat, TinyHugeAndUndefinedNumbers) {
  for (const float x : {1e-30f, 3e-38f, 1e-40f, 3e38f}) {
    const std::vector<float> row(33, x);
    for (const float found : through(RowDtype::kMXFP8, row, {.key = 4}))
      EXPECT_NEAR(found / x, 1, 0.13) << x;
  }
  std::vector<float> row(40, 1.0f);
  row[3] = NAN;
  const std::vector<float> mxfp8 = through(RowDtype::kMXFP8, row, {}),
                           bf16 = through(RowDtype::kBFloat16, row, {});
  for (size_t i = 0; i < 32; ++i) EXPECT_TRUE(std::isnan(mxfp8[i]));
  EXPECT_EQ(mxfp8[32], 1);
  EXPECT_TRUE(std::isnan(bf16[3]));
  EXPECT_EQ(bf16[2], 1);
  row[3] = INFINITY;
  EXPECT_EQ(through(RowDtype::kBFloat16, row, {})[3], INFINITY);
}

TEST(RowFormat, BytesShrink) {
  const auto bytes = [](RowDtype dtype) {
    return PackedTables({.tables = {{"t", 1000, 64}},
                         .optimizer = {.kind = OptimizerKind::kSgd},
                         .row_dtype = dtype})
        .stored(0)
        .nbytes();
  };
  EXPECT_EQ(bytes(RowDtype::kFloat32), 256000);
  EXPECT_EQ(bytes(RowDtype::kBFloat16), 128000);
  EXPECT_EQ(bytes(RowDtype::kMXFP8), 66000);
  EXPECT_THAT(user_error([] { parse_row_dtype("fp4"); }), HasSubstr("fp4"));
  EXPECT_THAT(user_error([] {
                place_tables({.tables = {{"t", 8, 64}},
                              .optimizer = {.kind = OptimizerKind::kSgd},
                              .row_dtype = RowDtype::kMXFP8},
                             {.ranks = 2, .sharding = Sharding::kColumnWise});
              }),
              HasSubstr("mxfp8 has one scale for 32 elements"));
}

PackSpec spec_of(RowDtype dtype, OptimizerKind kind) {
  return {.tables = {{"large", 40, 70}, {"mean", 23, 16, Pooling::kMean}, {"wide", 31, 1}},
          .feature_table = {0, 1, 0, 2},
          .optimizer = {.kind = kind, .lr = 0.05, .eps = 1e-3, .weight_decay = 0.01},
          .seed = 3,
          .row_dtype = dtype};
}

/// Pooled rows are the exact sums of the decoded rows. An update leaves each row next to the exact
/// result.
TEST(RowFormat, LookupsAndUpdatesAreTheReferenceUpToOneRounding) {
  for (const RowDtype dtype : kLow) {
    for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdagrad,
                            OptimizerKind::kRowWiseAdagrad, OptimizerKind::kAdam}) {
      PackedTables tables(spec_of(dtype, kind));
      Reference reference(tables);
      const Jagged batch = random_batch(tables, 50, 4, true);
      expect_close(pool(tables, batch), reference.pool(batch), 1e-5);
      const at::Tensor gradient = normal({50, tables.columns()}, 5);
      update(tables, {{batch, gradient}});
      reference.update(batch, gradient);
      for (int64_t t = 0; t < 3; ++t) {
        const at::Tensor exact = reference.weight[static_cast<size_t>(t)],
                         found = tables.weight(t).to(at::kDouble);
        // A unit in the last place: 2^-7 of a number, or 2^-3 of it and 2^-9 * 2^X <= 2^-9 * 2 /
        // 448 of the largest.
        const at::Tensor amax = std::get<0>(exact.abs().max(1, true));
        const at::Tensor place = dtype == RowDtype::kBFloat16
                                     ? exact.abs() * 0x1p-7
                                     : exact.abs() * 0x1p-3 + amax * (0x1p-8 / 448);
        EXPECT_TRUE(((found - exact).abs() <= place * 1.001 + 1e-6).all().item<bool>())
            << name(dtype) << " table " << t;
        EXPECT_FALSE(at::allclose(found, exact, 1e-6, 1e-9));
      }
    }
  }
}

TEST(RowFormat, SmallUpdatesMoveRowsThatNearestWouldLeave) {
  for (const RowDtype dtype : kLow) {
    PackedTables tables({.tables = {{"t", 1, 64}},
                         .feature_table = {0},
                         .optimizer = {.kind = OptimizerKind::kSgd, .lr = 1},
                         .seed = 1,
                         .row_dtype = dtype});
    const at::Tensor begin = at::ones({64}, at::kFloat);
    encode_row(dtype, begin.const_data_ptr<float>(), 64, {}, tables.row_data(0));
    const Jagged batch{testing::ids_from({0}), testing::ids_from({0, 1}), {}, 1, 1};
    constexpr double kStep =
        0x1p-12;  // a 32nd of bfloat16's last place below one, a 512th of E4M3's
    for (int i = 0; i < 1024; ++i) update(tables, {{batch, at::full({1, 64}, kStep, at::kFloat)}});
    // Each element has moved by 1024 * 2^-12 on the mean; the mean over 64 is within some places of
    // it.
    EXPECT_NEAR(tables.weight(0).mean().item<double>(), 0.75, 0.03) << name(dtype);
    const auto nearest = static_cast<float>(1 - kStep);
    EXPECT_EQ(static_cast<float>(c10::BFloat16(nearest)), 1);
  }
}

TEST(RowFormat, TheWordsAreAFunctionOfSeedTableStepRowAndColumn) {
  const auto stored = [](uint64_t seed, const std::string& table, int64_t steps, TableSlice slice) {
    PackedTables tables({.tables = {{.name = table, .rows = 4, .dim = 32, .slice = slice}},
                         .feature_table = {0},
                         .optimizer = {.kind = OptimizerKind::kSgd, .lr = 1},
                         .seed = seed,
                         .row_dtype = RowDtype::kBFloat16});
    tables.stored(0).fill_(1);
    tables.set_steps(steps);
    const Jagged batch{testing::ids_from({0, 1, 2, 3}), testing::ids_from({0, 4}), {}, 1, 1};
    update(tables, {{batch, at::full({1, 32}, 0x1p-9, at::kFloat)}});
    return tables.stored(0).clone();
  };
  const at::Tensor base = stored(1, "t", 0, {});
  expect_same_bits(stored(1, "t", 0, {}), base);
  EXPECT_FALSE(at::equal(stored(2, "t", 0, {}), base));
  EXPECT_FALSE(at::equal(stored(1, "u", 0, {}), base));
  EXPECT_FALSE(at::equal(stored(1, "t", 1, {}), base));
  EXPECT_FALSE(at::equal(base[0], base[1]));
  // Reads rows 1, 3, 5, 7 of the whole table, and columns 32 to 63.
  const at::Tensor odd = stored(1, "t", 0, {.first_row = 1, .row_step = 2});
  expect_same_bits(odd[0], base[1]);
  expect_same_bits(odd[1], base[3]);
  EXPECT_FALSE(at::equal(stored(1, "t", 0, {.first_column = 32}), base));
}

}  // namespace
}  // namespace dovetail::embedding::row_format_test
