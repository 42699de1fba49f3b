#include "dovetail/mx/quantize.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/mx/blocks.h"

namespace dovetail::mx::quantize_test {
namespace {

using dovetail::testing::at_every_simd_level;
using dovetail::testing::Threads;
using dovetail::testing::user_error;
using ::testing::HasSubstr;

/// Codes and scale of one block, laid along a row and down a column.
void expect_block(const std::vector<uint32_t>& inputs, const QuantizeSpec& spec, int scale,
                  const std::vector<int>& codes, const std::string& what) {
  QuantizeSpec both = spec;
  both.copies = Copies::kRowAndColumn;
  const auto count = static_cast<int64_t>(inputs.size());
  const Quantized row = quantize(float_tensor(inputs, {1, count}), both);
  const Quantized column = quantize(float_tensor(inputs, {count, 1}), both);
  for (const MXTensor* tensor : {&row.row, &column.column}) {
    EXPECT_EQ(tensor->scales().item<uint8_t>(), scale) << what;
    const auto* found = tensor->codes().const_data_ptr<uint8_t>();
    for (size_t i = 0; i < codes.size(); ++i)
      EXPECT_EQ(int{found[i]}, codes[i]) << what << ", element " << i;
  }
}

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

struct BlockCase {
  std::vector<uint32_t> inputs;
  Format format;
  ScaleMode mode;
  int scale;
  std::vector<int> codes;
};

std::vector<BlockCase> written_cases() {
  constexpr auto kUp = ScaleMode::kRoundUp, kFloor = ScaleMode::kFloor;
  constexpr auto kE4M3 = Format::kE4M3;
  const uint32_t k448 = bits_of(448), k512 = bits_of(512), kMax = 0x7f7fffff,
                 kOdd = bits_of(1.78125F * 32);
  const auto small = bits_of(0x1p-10F);
  return {
      {{0}, kE4M3, kUp, 0, {0}},
      {{0x80000000, 0}, kE4M3, kUp, 0, {0x80, 0}},
      {{k448}, kE4M3, kUp, 127, {0x7e}},
      {{k448}, kE4M3, kFloor, 127, {0x7e}},
      {{k448 + 1}, kE4M3, kUp, 128, {0x76}},
      {{k448 + 1}, kE4M3, kFloor, 127, {0x7e}},
      {{k512 - 1}, kE4M3, kUp, 128, {0x78}},
      {{k512 - 1}, kE4M3, kFloor, 127, {0x7e}},
      {{kOdd}, kE4M3, kUp, 125, {0x76}},
      {{kOdd}, kE4M3, kFloor, 124, {0x7e}},
      {{kMax}, kE4M3, kUp, 247, {0x78}},
      {{kMax}, kE4M3, kFloor, 246, {0x7e}},
      {{0x00800000}, kE4M3, kUp, 0, {0x40}},
      {{0x007fffff}, kE4M3, kUp, 0, {0x40}},
      {{1}, kE4M3, kUp, 0, {0}},
      // 448 * 2^-127 is subnormal in float32 and so is the quotient that torchao takes the scale
      // from: it gives 0 here.
      {{bits_of(448 * 0x1p-126F) - 0x00800000 + 1}, kE4M3, kUp, 1, {0x76}},
      {{bits_of(1), 1, 0x80000001}, kE4M3, kUp, 119, {0x78, 0x00, 0x80}},
      {{k448, small}, kE4M3, kUp, 127, {0x7e, 0x00}},
      {{k448, small + 1}, kE4M3, kUp, 127, {0x7e, 0x01}},
      {{k448, bits_of(1.5F * 0x1p-9F)}, kE4M3, kUp, 127, {0x7e, 0x02}},
      {{bits_of(1e4F), bits_of(-1e-4F), bits_of(1e-3F), bits_of(1e-2F), bits_of(-0.1F), bits_of(1)},
       kE4M3,
       kUp,
       132,
       {0x7a, 0x80, 0x00, 0x00, 0x82, 0x10}},
      {{bits_of(57344)}, Format::kE5M2, kUp, 127, {0x7b}},
      {{bits_of(57344) + 1}, Format::kE5M2, kUp, 128, {0x77}},
      {{bits_of(7.5)}, Format::kE2M3, kUp, 127, {0x1f}},
      {{bits_of(28)}, Format::kE3M2, kUp, 127, {0x1f}},
      {{bits_of(6)}, Format::kE2M1, kUp, 127, {7}},
      {{bits_of(6) + 1}, Format::kE2M1, kUp, 128, {5}},
      {{bits_of(6), bits_of(.25), bits_of(.75), bits_of(1.25), bits_of(1.75), bits_of(2.5),
        bits_of(3.5), bits_of(5)},
       Format::kE2M1,
       kUp,
       127,
       {7, 0, 2, 2, 4, 4, 6, 6}},
      {{bits_of(127.0F / 64), bits_of(-127.0F / 64), bits_of(-1.0F / 64), 0x80000000},
       Format::kInt8,
       kUp,
       127,
       {127, 129, 255, 0}},
      {{kMax}, Format::kInt8, kUp, 254, {127}},
  };
}

TEST(Quantize, HoldsTheWrittenCasesWithAndWithoutSubnormalNumbers) {
  for (const bool flush : {false, true}) {
    const FlushDenormals flushing(flush);
    at_every_simd_level([&] {
      int index = 0;
      for (const BlockCase& c : written_cases()) {
        expect_block(c.inputs, {.format = c.format, .scale_mode = c.mode}, c.scale, c.codes,
                     "case " + std::to_string(index++) + (flush ? " flushing" : ""));
      }
    });
  }
}

std::vector<uint32_t> hexadecimals(const std::string& text) {
  std::vector<uint32_t> found;
  std::istringstream stream(text);
  for (std::string number; std::getline(stream, number, ',');)
    found.push_back(static_cast<uint32_t>(std::stoul(number, nullptr, 16)));
  return found;
}

/// tools/make_mx_fixtures.py made them with fractions.
TEST(Quantize, HoldsTheCasesOfExactArithmeticWithAndWithoutSubnormalNumbers) {
  const char* folder = std::getenv("DOVETAIL_TEST_DATA");
  ASSERT_NE(folder, nullptr);
  std::ifstream file(std::string(folder) + "/mx/cases.txt");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  ASSERT_GT(lines.size(), 1000U);
  for (const bool flush : {false, true}) {
    const FlushDenormals flushing(flush);
    at_every_simd_level([&] {
      for (const std::string& line : lines) {
        std::istringstream words(line);
        std::string format, mode, non_finite, inputs, scale, codes;
        words >> format >> mode >> non_finite >> inputs >> scale >> codes;
        std::vector<int> expected;
        for (const uint32_t code : hexadecimals(codes)) expected.push_back(static_cast<int>(code));
        expect_block(hexadecimals(inputs),
                     {.format = parse_format(format),
                      .scale_mode = parse_scale_mode(mode),
                      .non_finite = parse_non_finite(non_finite)},
                     static_cast<int>(hexadecimals(scale).at(0)), expected, line);
        if (::testing::Test::HasFailure()) return;
      }
    });
  }
}

/// The numbers of `codes` bit for bit, NaN and the sign of zero included.
void expect_values(const at::Tensor& values, const MXTensor& codes, const at::Tensor& x,
                   const char* what) {
  const auto bits = x.scalar_type() == at::kFloat ? at::kInt : at::kShort;
  EXPECT_TRUE(at::equal(values.view(bits), dequantize(codes, x.scalar_type()).view(bits)))
      << what << " values";
}

void expect_same_statistics(const Statistics& a, const Statistics& b) {
  EXPECT_EQ(a.underflows, b.underflows);
  EXPECT_EQ(a.saturations, b.saturations);
  EXPECT_EQ(a.elements, b.elements);
  EXPECT_EQ(a.error, b.error);
}

/// Expects that values equal the decoded codes, whatever other outputs are requested.
void expect_values_like_codes(const at::Tensor& x, QuantizeSpec spec) {
  spec.copies = Copies::kRowAndColumn;
  const Quantized codes = quantize(x, spec);
  spec.column_values = true;
  const Quantized mixed = quantize(x, spec);
  EXPECT_TRUE(at::equal(mixed.row.codes(), codes.row.codes()));
  expect_values(mixed.column_values, codes.column, x, "column");
  spec.row_values = true;
  const Quantized values = quantize(x, spec);
  EXPECT_FALSE(values.row.defined() || values.column.defined());
  expect_values(values.row_values, codes.row, x, "row");
  expect_values(values.column_values, codes.column, x, "column of both");
  expect_same_statistics(values.row_statistics, codes.row_statistics);
  expect_same_statistics(values.column_statistics, codes.column_statistics);
  spec.copies = Copies::kSquare;
  const Quantized square = quantize(x, spec);
  spec.square_values = true;
  expect_values(quantize(x, spec).square_values, square.square, x, "square");
}

/// All copies of x under `spec` against the serial reference, statistics included.
void expect_like_reference(const at::Tensor& x, QuantizeSpec spec) {
  const int64_t rows = x.size(0), cols = x.size(1);
  const auto bits = bits_of_tensor(x);
  const reference::Options options{spec.format, spec.scale_mode, spec.non_finite,
                                   spec.rounding == Rounding::kStochastic, spec.seed};
  const auto expected = [&](size_t block_rows, size_t block_cols) {
    return reference::quantize(bits, static_cast<size_t>(rows), static_cast<size_t>(cols),
                               block_rows, block_cols, options);
  };
  const auto row = expected(1, 32), column = expected(32, 1), square = expected(32, 32);
  at_every_simd_level([&] {
    spec.copies = Copies::kRow;
    const Quantized only_row = quantize(x, spec);
    expect_same(only_row.row, only_row.row_statistics, row, "row");
    spec.copies = Copies::kColumn;
    const Quantized only_column = quantize(x, spec);
    expect_same(only_column.column, only_column.column_statistics, column, "column");
    spec.copies = Copies::kRowAndColumn;
    const Quantized both = quantize(x, spec);
    expect_same(both.row, both.row_statistics, row, "row of both");
    expect_same(both.column, both.column_statistics, column, "column of both");
    spec.copies = Copies::kSquare;
    const Quantized squares = quantize(x, spec);
    expect_same(squares.square, squares.square_statistics, square, "square");
    if (x.scalar_type() != at::kHalf) expect_values_like_codes(x, spec);
  });
}

class QuantizeFormats
    : public ::testing::TestWithParam<std::tuple<Format, ScaleMode, at::ScalarType>> {};

std::string parameter_name(const ::testing::TestParamInfo<QuantizeFormats::ParamType>& info) {
  const auto [format, mode, dtype] = info.param;
  return std::string(name(format)) + "_" + std::string(name(mode)) + "_" + c10::toString(dtype);
}

INSTANTIATE_TEST_SUITE_P(
    All, QuantizeFormats,
    ::testing::Combine(::testing::Values(Format::kE4M3, Format::kE5M2, Format::kE3M2, Format::kE2M3,
                                         Format::kE2M1, Format::kInt8),
                       ::testing::Values(ScaleMode::kRoundUp, ScaleMode::kFloor, ScaleMode::kCeil,
                                         ScaleMode::kEven),
                       ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf)),
    parameter_name);

TEST_P(QuantizeFormats, MatchTheReferenceOverShapes) {
  const auto [format, mode, dtype] = GetParam();
  const QuantizeSpec spec{.format = format, .scale_mode = mode};
  uint64_t seed = 1;
  for (const auto& [rows, cols] :
       {std::pair(1, 1), {1, 31}, {31, 1}, {32, 32}, {33, 33}, {3, 127}, {67, 131}, {5, 256}})
    expect_like_reference(ordinary_values({rows, cols}, seed++, dtype), spec);
  // Wider than one piece of the kernel's, and with a short last one.
  expect_like_reference(ordinary_values({2, 2048 + 61}, seed, dtype), spec);
}

TEST_P(QuantizeFormats, MatchTheReferenceOnAdversarialValues) {
  const auto [format, mode, dtype] = GetParam();
  for (const bool flush : {false, true}) {
    const FlushDenormals flushing(flush);
    for (const NonFinite non_finite : {NonFinite::kPoison, NonFinite::kSaturate}) {
      const QuantizeSpec spec{.format = format, .scale_mode = mode, .non_finite = non_finite};
      expect_like_reference(adversarial_values({37, 97}, 5, format, false, dtype), spec);
      expect_like_reference(adversarial_values({37, 97}, 6, format, true, dtype), spec);
    }
  }
}

TEST_P(QuantizeFormats, RoundAtRandomLikeTheReference) {
  const auto [format, mode, dtype] = GetParam();
  QuantizeSpec spec{.format = format,
                    .scale_mode = mode,
                    .rounding = Rounding::kStochastic,
                    .seed = 0x123456789abcdef0};
  for (const auto& [rows, cols] :
       {std::pair(1, 1), {1, 31}, {31, 1}, {32, 32}, {33, 33}, {3, 127}, {35, 97}, {5, 256}})
    expect_like_reference(ordinary_values({rows, cols}, spec.seed++, dtype), spec);
  // Wider than one piece of the kernel. The second row begins within a call of Philox.
  expect_like_reference(ordinary_values({2, 2048 + 61}, 3, dtype), spec);
  expect_like_reference(ordinary_values({66, 70}, 4, dtype).t().slice(1, 1, 64, 3), spec);
  for (const bool flush : {false, true}) {
    const FlushDenormals flushing(flush);
    expect_like_reference(adversarial_values({35, 97}, 5, format, true, dtype), spec);
  }
}

/// A seed whose first word lies in [begin, end).
uint64_t seed_with_word(uint64_t begin, uint64_t end) {
  for (uint64_t seed = 0;; ++seed) {
    const uint32_t word = philox(seed, 0, static_cast<uint64_t>(RandomStream::kQuantize))[0];
    if (word >= begin && word < end) return seed;
  }
}

/// Each of 32 bits after the last place counts, also in numbers that the processor may flush to
/// zero.
TEST(Quantize, RoundsTheSmallestNumbersUpAsOftenAsTheyAreLarge) {
  constexpr double kLastPlace =
      0x1p-16;  // last place of E5M2 under scale 1, in a block whose largest element is 2^15
  for (const int amax_exponent : {15, -58, -62, -79}) {
    const double scale = std::ldexp(1, amax_exponent - 15);
    for (const int depth : {4, 9, 13, 18}) {
      at::Tensor x = at::full({1, 32}, std::ldexp(1.5, -depth) * kLastPlace * scale, at::kDouble)
                         .to(at::kFloat);
      x[0][1] = std::ldexp(1, amax_exponent);
      const auto share = static_cast<uint64_t>(std::ldexp(1.5, 32 - depth)),
                 all = uint64_t{1} << 32;
      for (const int code : {0, 1}) {
        const uint64_t limit = all - share;
        const uint64_t seed = code == 1 ? seed_with_word(limit, limit + share / 2)
                                        : seed_with_word(limit - share / 2, limit);
        const QuantizeSpec spec{
            .format = Format::kE5M2, .rounding = Rounding::kStochastic, .seed = seed};
        for (const bool flush : {false, true}) {
          const FlushDenormals flushing(flush);
          expect_like_reference(x, spec);
          EXPECT_EQ(quantize(x, spec).row.codes()[0][0].item<uint8_t>(), code)
              << amax_exponent << " " << depth;
        }
      }
    }
  }
}

TEST(Quantize, RoundsRowsThatAreMadeAtRandomLikeATensor) {
  const at::Tensor x = ordinary_values({131, 67}, 1, at::kFloat);
  const ops::MadeRows rows{
      .sizes = {131, 67}, .dtype = at::kFloat, .make = [&](int64_t row, int64_t count, void* to) {
        std::memcpy(to, x.const_data_ptr<float>() + row * 67, static_cast<size_t>(count * 67) * 4);
      }};
  const QuantizeSpec spec{
      .rounding = Rounding::kStochastic, .seed = 9, .copies = Copies::kRowAndColumn};
  const Quantized expected = quantize(x, spec);
  at_every_simd_level([&] {
    const Quantized made = quantize(rows, spec);
    EXPECT_TRUE(at::equal(made.row.codes(), expected.row.codes()));
    EXPECT_TRUE(at::equal(made.column.codes(), expected.column.codes()));
  });
}

TEST(Quantize, TakesAnyStrides) {
  const at::Tensor x = ordinary_values({66, 70}, 1, at::kFloat);
  for (const at::Tensor& view :
       {x.t(), x.slice(0, 1, 64, 3), x.slice(1, 0, 70, 2), x.flip(0), x[3].expand({4, 70})}) {
    expect_like_reference(view, {});
    EXPECT_TRUE(quantize(view).row.codes().is_contiguous());
  }
}

TEST(Quantize, LaysBlocksAlongTheLastOrTheFirstOfManyDimensions) {
  const at::Tensor x = ordinary_values({33, 3, 65}, 1, at::kBFloat16);
  const Quantized both = quantize(x, {.copies = Copies::kRowAndColumn});
  EXPECT_EQ(both.row.scales().sizes(), at::IntArrayRef({33, 3, 3}));
  EXPECT_EQ(both.column.scales().sizes(), at::IntArrayRef({2, 3, 65}));
  const Quantized rows = quantize(x.reshape({99, 65})),
                  columns = quantize(x.reshape({33, 195}), {.copies = Copies::kColumn});
  EXPECT_TRUE(at::equal(both.row.codes().view({99, 65}), rows.row.codes()));
  EXPECT_TRUE(at::equal(both.row.scales().view({99, 3}), rows.row.scales()));
  EXPECT_TRUE(at::equal(both.column.codes().view({33, 195}), columns.column.codes()));
  EXPECT_TRUE(at::equal(both.column.scales().view({2, 195}), columns.column.scales()));
  EXPECT_EQ(both.column_statistics.elements, x.numel());
  const Quantized vector = quantize(x[0][0], {.copies = Copies::kRowAndColumn});
  EXPECT_TRUE(at::equal(vector.row.codes(), vector.column.codes()));
  EXPECT_TRUE(at::equal(vector.row.scales(), vector.column.scales()));
}

TEST(Quantize, HasShapesWithoutElementsAndOnTheMetaDevice) {
  for (const auto& sizes : {std::vector<int64_t>{0}, {0, 5}, {5, 0}, {0, 0}}) {
    const Quantized empty = quantize(at::zeros(sizes), {.copies = Copies::kRowAndColumn});
    EXPECT_EQ(empty.row.sizes(), at::IntArrayRef(sizes));
    EXPECT_EQ(empty.row_statistics.elements, 0);
    EXPECT_EQ(dequantize(empty.column).sizes(), at::IntArrayRef(sizes));
  }
  const Quantized meta = quantize(at::empty({3, 65}, at::TensorOptions().device(at::kMeta)));
  EXPECT_TRUE(meta.row.codes().is_meta());
  EXPECT_EQ(meta.row.scales().sizes(), at::IntArrayRef({3, 3}));
  EXPECT_EQ(dequantize(meta.row, at::kBFloat16).scalar_type(), at::kBFloat16);
}

TEST(Quantize, HasTheSameBitsAndSumsForAnyThreadCount) {
  const at::Tensor x = ordinary_values({700, 611}, 1, at::kFloat);
  const auto run = [&](int threads) {
    const Threads count(threads);
    return quantize(x, {.format = Format::kE2M1,
                        .scale_mode = ScaleMode::kFloor,
                        .copies = Copies::kRowAndColumn});
  };
  const Quantized one = run(1);
  for (const int threads : {2, 3}) {
    const Quantized many = run(threads);
    EXPECT_TRUE(at::equal(one.row.codes(), many.row.codes()));
    EXPECT_TRUE(at::equal(one.column.codes(), many.column.codes()));
    EXPECT_TRUE(at::equal(one.column.scales(), many.column.scales()));
    EXPECT_EQ(one.row_statistics.signal, many.row_statistics.signal);
    EXPECT_EQ(one.row_statistics.error, many.row_statistics.error);
    EXPECT_EQ(one.column_statistics.error, many.column_statistics.error);
    EXPECT_EQ(one.column_statistics.saturations, many.column_statistics.saturations);
  }
}

TEST(Quantize, RoundsAtRandomWithoutBias) {
  const at::Tensor x = at::full({64, 1024}, 1.03);
  x.select(1, 0).fill_(448);
  const Quantized rounded =
      quantize(x, {.rounding = Rounding::kStochastic, .seed = 5, .copies = Copies::kSquare});
  // Between 1 and 1.125, so a share of 0.24 goes up; deviation over 64 * 1023 draws, times five.
  const double mean = dequantize(rounded.square).slice(1, 1).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(mean, 1.03, 5 * 0.125 * std::sqrt(0.24 * 0.76 / (64 * 1023)));
  const auto codes = [&](uint64_t seed) {
    return quantize(x, {.rounding = Rounding::kStochastic, .seed = seed}).row.codes();
  };
  EXPECT_TRUE(at::equal(codes(5), codes(5)));
  EXPECT_FALSE(at::equal(codes(5), codes(6)));
}

TEST(Quantize, WritesIntoTheCopiesOfAnEarlierCall) {
  const at::Tensor first = ordinary_values({40, 70}, 1, at::kFloat),
                   second = ordinary_values({40, 70}, 2, at::kFloat);
  const QuantizeSpec spec{.copies = Copies::kRowAndColumn};
  Quantized out = quantize(first, spec);
  const void* memory = out.row.codes().const_data_ptr();
  quantize_into(second, spec, out);
  const Quantized expected = quantize(second, spec);
  EXPECT_EQ(out.row.codes().const_data_ptr(), memory);
  EXPECT_TRUE(at::equal(out.row.codes(), expected.row.codes()));
  EXPECT_TRUE(at::equal(out.column.codes(), expected.column.codes()));
  EXPECT_TRUE(at::equal(out.column.scales(), expected.column.scales()));
  EXPECT_EQ(out.row_statistics.error, expected.row_statistics.error);
  EXPECT_EQ(out.row_statistics.elements, 40 * 70);
  EXPECT_THAT(user_error([&] { quantize_into(first.t(), spec, out); }),
              HasSubstr("[70, 40] Float"));
  EXPECT_THAT(user_error([&] { quantize_into(first, {.format = Format::kE2M1}, out); }),
              HasSubstr("row copy is"));
  EXPECT_THAT(user_error([&] { quantize_into(first, {.copies = Copies::kSquare}, out); }),
              HasSubstr("undefined"));
}

TEST(Quantize, IsTheSameWithItsKernelsSwitchedOff) {
  const at::Tensor x = ordinary_values({67, 131}, 1, at::kBFloat16);
  const Quantized by_vectors = quantize(x, {.copies = Copies::kRowAndColumn});
  ops::set_disabled_kernels("mx_quantize");
  const Quantized by_codec = quantize(x, {.copies = Copies::kRowAndColumn});
  ops::set_disabled_kernels("");
  EXPECT_TRUE(at::equal(by_vectors.row.codes(), by_codec.row.codes()));
  EXPECT_TRUE(at::equal(by_vectors.column.scales(), by_codec.column.scales()));
}

TEST(Quantize, RefusesWhatItCannotDoNamingIt) {
  EXPECT_THAT(user_error([] { quantize(at::zeros({2, 3}, at::kDouble)); }),
              HasSubstr("[2, 3] Double"));
  EXPECT_THAT(user_error([] { quantize(at::zeros({2, 3}, at::kLong)); }),
              HasSubstr("float32, bfloat16 or float16"));
  EXPECT_THAT(user_error([] { quantize(at::zeros({})); }), HasSubstr("a dimension"));
  EXPECT_THAT(user_error([] { quantize(at::Tensor()); }), HasSubstr("undefined"));
  EXPECT_THAT(user_error([] { quantize(at::zeros({2, 3}, at::kHalf), {.row_values = true}); }),
              HasSubstr("Half"));
  EXPECT_THAT(user_error([] { quantize(at::zeros({2, 3, 4}), {.copies = Copies::kSquare}); }),
              HasSubstr("[2, 3, 4]"));
}

}  // namespace
}  // namespace dovetail::mx::quantize_test
