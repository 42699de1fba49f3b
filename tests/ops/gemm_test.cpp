#include "dovetail/ops/gemm.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/testing.h"

namespace dovetail::ops::gemm_test {
namespace {

using ::testing::AllOf;
using testing::at_every_simd_level;
using testing::expect_close;
using testing::expect_same_bits;
using ::testing::HasSubstr;
using testing::normal;
using testing::user_error;

at::Tensor reference(const at::Tensor& a, const at::Tensor& b, GemmOptions o) {
  const at::Tensor left = a.to(at::kDouble), right = b.to(at::kDouble);
  return at::mm(o.transpose_a ? left.t() : left, o.transpose_b ? right.t() : right);
}

/// Expects the error of a float32 sum of k products: some units in the last place of the sum of
/// their magnitudes. The error grows like sqrt(k).
void expect_product(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                    GemmOptions o = {}) {
  const at::Tensor expected = reference(a, b, o), magnitude = reference(a.abs(), b.abs(), o);
  ASSERT_EQ(c.sizes(), expected.sizes());
  const double k = static_cast<double>(o.transpose_a ? a.size(0) : a.size(1));
  const at::Tensor bound = magnitude * (4 * std::sqrt(k + 1) * 0x1p-24);
  EXPECT_TRUE(((c.to(at::kDouble) - expected).abs() <= bound).all().item<bool>())
      << "off by " << (c.to(at::kDouble) - expected).abs().max().item<double>();
}

at::Tensor operand(int64_t rows, int64_t columns, bool transposed, uint64_t seed,
                   at::ScalarType dtype = at::kFloat) {
  return transposed ? normal({columns, rows}, seed, dtype) : normal({rows, columns}, seed, dtype);
}

TEST(Gemm, MatchesFloat64OverOddShapesAndTransposes) {
  at_every_simd_level([] {
    for (const int64_t m : {0, 1, 13, 31, 97}) {
      for (const int64_t n : {0, 1, 33, 47, 64}) {
        for (const int64_t k : {0, 1, 5, 37, 385}) {
          for (const bool transpose_a : {false, true}) {
            const bool transpose_b = (m + n + k) % 2 == 0;
            const GemmOptions options{.transpose_a = transpose_a, .transpose_b = transpose_b};
            const at::Tensor a = operand(m, k, transpose_a, 1), b = operand(k, n, transpose_b, 2);
            SCOPED_TRACE(::testing::Message()
                         << m << " x " << n << " x " << k << " " << transpose_a << transpose_b);
            expect_product(gemm(a, b, options), a, b, options);
          }
        }
      }
    }
  });
}

TEST(Gemm, CrossesEveryBlockBoundary) {
  // More than one row task (96), slice of k (768 or 384) and packed panel (2 Mi floats).
  at_every_simd_level([] {
    const at::Tensor a = normal({101, 800}, 1), b = normal({5500, 800}, 2);
    expect_product(gemm(a, b, {.transpose_b = true}), a, b, {.transpose_b = true});
    const at::Tensor tall = normal({6000, 33}, 3), wide = normal({6000, 371}, 4);
    expect_product(gemm(tall, wide, {.transpose_a = true}), tall, wide, {.transpose_a = true});
  });
}

TEST(Gemm, AddsTheBiasAndSumsTheRows) {
  at_every_simd_level([] {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      // Two slices of k, a short last tile, more than one panel of columns.
      const at::Tensor a = normal({1001, 103}, 1, dtype), b = normal({1001, 2200}, 2, dtype),
                       bias = normal({2200}, 3, dtype);
      at::Tensor c = at::empty({103, 2200}, a.options());
      const at::Tensor sums = at::empty({103}, a.options());
      gemm_into(c, a, b, {.transpose_a = true, .bias = bias, .row_sums = sums});
      expect_close(c, reference(a, b, {.transpose_a = true}) + bias.to(at::kDouble), 3e-4);
      expect_close(sums, a.to(at::kDouble).sum(0), 3e-5);
    }
  });
  at::Tensor c = at::empty({2, 3});
  const at::Tensor a = at::ones({2, 4}), b = at::ones({4, 3});
  EXPECT_THAT(user_error([&] { gemm_into(c, a, b, {.bias = at::ones({2})}); }),
              HasSubstr("bias must be [3]"));
  EXPECT_THAT(user_error([&] { gemm_into(c, a, b, {.row_sums = at::ones({3})}); }),
              HasSubstr("row_sums must be [2]"));
  EXPECT_THAT(user_error([&] { gemm_into(c, a, b, {.accumulate = true, .bias = at::ones({3})}); }),
              HasSubstr("exclude each other"));
}

TEST(Gemm, AccumulatesIntoAViewWithLongRows) {
  at_every_simd_level([] {
    const at::Tensor a = normal({29, 411}, 1), b = normal({411, 35}, 2),
                     storage = normal({29, 50}, 3);
    const at::Tensor before = storage.clone();
    at::Tensor c = storage.narrow(1, 7, 35);
    gemm_into(c, a, b, {.accumulate = true});
    expect_close(c, before.narrow(1, 7, 35).to(at::kDouble) + reference(a, b, {}), 3e-5);
    expect_same_bits(storage.narrow(1, 0, 7), before.narrow(1, 0, 7));
    expect_same_bits(storage.narrow(1, 42, 8), before.narrow(1, 42, 8));
  });
}

TEST(Gemm, TakesAnyStrides) {
  at_every_simd_level([] {
    const at::Tensor a = normal({60, 90}, 1).slice(0, 0, 60, 2).slice(1, 0, 90, 3);
    const at::Tensor b = normal({40, 30}, 2).t();
    expect_product(gemm(a, b), a, b);
    const at::Tensor row = normal({1, 30}, 3).expand({8, 30});
    expect_product(gemm(row, b), row, b);
  });
}

TEST(Gemm, SameBitsForAnyThreadCountAndAnyPlaceInTheResult) {
  at_every_simd_level([] {
    const at::Tensor a = normal({203, 777}, 1), b = normal({777, 331}, 2);
    const at::Tensor serial = gemm(a, b);
    for (const int threads : {2, 3}) {
      const testing::Threads count(threads);
      expect_same_bits(gemm(a, b), serial);
    }
    // A row alone is the same sum as that row of the whole.
    expect_same_bits(gemm(a.narrow(0, 150, 1), b), serial.narrow(0, 150, 1));
  });
}

at::Tensor rows_of(int64_t count, int64_t of, uint64_t seed) {
  return at::randperm(of, at::detail::createCPUGenerator(seed), at::kLong)
      .narrow(0, 0, count)
      .to(at::kInt)
      .contiguous();
}

TEST(Gemm, ReadsRowsWhereTheyLie) {
  at_every_simd_level([] {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      for (const int64_t width : {1, 3, 130}) {
        const at::Tensor x = normal({300, width}, 1, dtype), rows = rows_of(190, 300, 2);
        const at::Tensor chosen = x.index_select(0, rows), b = normal({width, 70}, 3, dtype);
        expect_same_bits(gemm(x, b, {.a_rows = rows}), gemm(chosen, b));
        const at::Tensor tall = normal({190, 45}, 4, dtype);
        expect_same_bits(gemm(x, tall, {.transpose_a = true, .a_rows = rows}),
                         gemm(chosen, tall, {.transpose_a = true}));
        expect_same_bits(gemm(tall, x, {.transpose_a = true, .b_rows = rows}),
                         gemm(tall, chosen, {.transpose_a = true}));
        expect_same_bits(gemm(b, x, {.transpose_a = true, .transpose_b = true, .b_rows = rows}),
                         gemm(b, chosen, {.transpose_a = true, .transpose_b = true}));
      }
    }
    const at::Tensor view = normal({50, 40}, 5).narrow(1, 3, 20),
                     rows = at::tensor({7, 7, 0}, at::kInt);
    expect_same_bits(gemm(view, at::eye(20), {.a_rows = rows}), view.index_select(0, rows));
  });
}

TEST(Gemm, AddsWeightedRows) {
  at_every_simd_level([] {
    for (const int64_t k : {5, 801}) {  // one slice of k, and more
      const at::Tensor a = normal({131, k}, 1), b = normal({k, 71}, 2),
                       before = normal({400, 71}, 3), weights = normal({131}, 4),
                       bias = normal({71}, 5), rows = rows_of(131, 400, 6);
      at::Tensor c = before.clone();
      gemm_into(c, a, b, {.accumulate = true, .bias = bias, .c_rows = rows, .c_weights = weights});
      const at::Tensor product =
          (reference(a, b, {}) + bias) * weights.to(at::kDouble).unsqueeze(1);
      expect_close(c, before.to(at::kDouble).index_add(0, rows, product), 1e-4);
      at::Tensor plain = before.clone();
      gemm_into(plain, a, b, {.accumulate = true, .c_rows = rows});
      expect_close(plain, before.to(at::kDouble).index_add(0, rows, reference(a, b, {})), 1e-4);
    }
    // Products in bfloat16, sums in float32.
    const at::Tensor a = normal({30, 20}, 1, at::kBFloat16), b = normal({20, 37}, 2, at::kBFloat16),
                     weights = normal({30}, 3), rows = rows_of(30, 60, 4);
    at::Tensor c = at::zeros({60, 37});
    gemm_into(c, a, b, {.accumulate = true, .c_rows = rows, .c_weights = weights});
    if (multiplies_bfloat16_rows() || widens_bfloat16()) {
      const at::Tensor product = reference(a, b, {}) * weights.to(at::kDouble).unsqueeze(1);
      expect_close(c, at::zeros({60, 37}, at::kDouble).index_add(0, rows, product), 1e-5);
    } else {
      const at::Tensor product = at::mm(a, b).to(at::kFloat) * weights.unsqueeze(1);
      expect_same_bits(c, at::zeros({60, 37}).index_add(0, rows, product));
    }
    // The product has more rows than `c_rows` names.
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = a.to(dtype), y = b.to(dtype);
      at::Tensor most = at::zeros({60, 37}), all = at::zeros({60, 37});
      gemm_into(most, x, y,
                {.accumulate = true,
                 .c_rows = rows.narrow(0, 0, 17),
                 .c_weights = weights.narrow(0, 0, 17)});
      gemm_into(all, x, y, {.accumulate = true, .c_rows = rows, .c_weights = weights});
      all.index_fill_(0, rows.narrow(0, 17, 13).to(at::kLong), 0);
      expect_same_bits(most, all);
    }
  });
}

TEST(Gemm, MultipliesRowsOfBFloat16) {
  at_every_simd_level([] {
    // Odd sizes, which pairs do not divide; and more terms than are summed before they are rounded.
    for (const int64_t k : {1, 2, 37, 64, 1535, 1700}) {
      for (const int64_t n : {2, 33, 96}) {
        for (const bool transpose_b : {false, true}) {
          SCOPED_TRACE(::testing::Message() << n << " x " << k << " " << transpose_b);
          const at::Tensor x = normal({150, k}, 1, at::kBFloat16),
                           b = operand(k, n, transpose_b, 2, at::kBFloat16),
                           bias = normal({n}, 3, at::kBFloat16), rows = rows_of(101, 150, 4);
          const at::Tensor chosen = x.index_select(0, rows);
          const at::Tensor expected = reference(chosen, b, {.transpose_b = transpose_b});
          expect_close(gemm(x, b, {.transpose_b = transpose_b, .bias = bias, .a_rows = rows}),
                       expected + bias.to(at::kDouble), 0x1p-7);
        }
        // Terms that are rows, from anywhere.
        const at::Tensor dy = normal({1800, 45}, 5, at::kBFloat16),
                         x = normal({k, n}, 6, at::kBFloat16), rows = rows_of(k, 1800, 7),
                         row_sums = at::empty({45}, at::kBFloat16);
        const at::Tensor chosen = dy.index_select(0, rows);
        expect_close(gemm(dy, x, {.transpose_a = true, .row_sums = row_sums, .a_rows = rows}),
                     reference(chosen, x, {.transpose_a = true}), 0x1p-7);
        expect_close(row_sums, chosen.to(at::kDouble).sum(0), 0x1p-7);
        expect_close(gemm(x, dy, {.transpose_a = true, .b_rows = rows}),
                     reference(x, chosen, {.transpose_a = true}), 0x1p-7);
      }
    }
  });
}

TEST(Gemm, AGroupIsOneAfterAnother) {
  at_every_simd_level([] {
    std::vector<GemmCall> calls, alone;
    at::Tensor sum = at::zeros({500, 3000}), sum_alone = at::zeros({500, 3000});
    const int64_t heights[] = {0, 1, 97, 300, 200, 31}, depths[] = {7, 900, 1, 400, 33, 64};
    for (uint64_t i = 0; i < std::size(heights); ++i) {
      const int64_t m = heights[i], k = depths[i];
      const at::Tensor a = normal({m, k}, i), b = normal({k, 3000}, 10 + i),
                       weights = normal({m}, 20 + i);
      const GemmOptions to_rows{
          .accumulate = true, .c_rows = rows_of(m, 500, 30 + i), .c_weights = weights};
      calls.push_back({sum, a, b, to_rows});
      gemm_into(sum_alone, a, b, to_rows);
      // Results of their own in between, of more columns than a panel has.
      const GemmOptions whole{.transpose_a = true, .row_sums = at::empty({k})};
      const at::Tensor x = normal({m, 35}, 40 + i);
      calls.push_back({at::full({k, 35}, NAN), a, x, whole});
      alone.push_back({gemm(a, x, {.transpose_a = true}), a, x, whole});
    }
    for (const int threads : {1, 2, 5}) {
      const testing::Threads count(threads);
      sum.zero_();
      gemm_group(calls);
      expect_same_bits(sum, sum_alone);
      for (size_t i = 0; i < alone.size(); ++i) {
        expect_same_bits(calls[2 * i + 1].c, alone[i].c);
        expect_close(alone[i].options.row_sums, alone[i].a.to(at::kDouble).sum(0), 1e-4);
      }
    }
  });
}

TEST(Gemm, RefusesRowsItCannotUse) {
  const at::Tensor a = at::zeros({3, 4}), b = at::zeros({4, 2}), rows = at::zeros({3}, at::kInt);
  at::Tensor c = at::zeros({9, 2});
  EXPECT_THAT(user_error([&] { gemm_into(c, a, b, {.c_rows = rows}); }),
              HasSubstr("c_rows needs accumulate"));
  EXPECT_THAT(user_error([&] {
                gemm_into(c, a, b, {.accumulate = true, .c_rows = at::zeros({4}, at::kInt)});
              }),
              HasSubstr("at most as many rows of c as the product's 3"));
  EXPECT_THAT(
      user_error([&] { gemm_into(c, a, b, {.accumulate = true, .c_weights = at::ones({3})}); }),
      HasSubstr("c_weights needs c_rows"));
  EXPECT_THAT(user_error([&] { gemm(a, b, {.a_rows = at::zeros({3}, at::kLong)}); }),
              HasSubstr("a_rows must be"));
  EXPECT_THAT(user_error([&] { gemm(a, b, {.b_rows = rows}); }), HasSubstr("inner"));
}

TEST(Gemm, NotANumberAndInfinityComeThrough) {
  at_every_simd_level([] {
    at::Tensor a = normal({14, 20}, 1), b = normal({20, 40}, 2);
    a.index_put_({at::tensor(3), at::tensor(4)}, at::tensor(NAN));
    b.index_put_({at::tensor(5), at::tensor(39)}, at::tensor(INFINITY));
    const at::Tensor c = gemm(a, b);
    EXPECT_TRUE(c[3].isnan().all().item<bool>());
    EXPECT_EQ(c.isnan().sum().item<int64_t>(), 40);
    EXPECT_EQ(c.isinf().sum().item<int64_t>(), 13);
  });
}

TEST(Gemm, OtherDtypesGoToAten) {
  const at::Tensor a = normal({17, 23}, 1, at::kDouble), b = normal({23, 9}, 2, at::kDouble);
  expect_same_bits(gemm(a, b), at::mm(a, b));
  if (widens_bfloat16()) return;
  const at::Tensor x = a.to(at::kBFloat16), y = b.to(at::kBFloat16);
  expect_same_bits(gemm(x, y), at::mm(x, y));
}

TEST(Gemm, WidensBFloat16WithoutItsInstructions) {
  int widened = 0;
  at_every_simd_level([&] {
    if (!widens_bfloat16()) return;
    ++widened;
    for (const int64_t k : {1, 37, 1000}) {
      for (const bool transpose_a : {false, true}) {
        for (const bool transpose_b : {false, true}) {
          SCOPED_TRACE(::testing::Message() << k << " " << transpose_a << " " << transpose_b);
          const GemmOptions plain = {.transpose_a = transpose_a, .transpose_b = transpose_b};
          const at::Tensor a = operand(101, k, transpose_a, 1, at::kBFloat16),
                           b = operand(k, 71, transpose_b, 2, at::kBFloat16),
                           bias = normal({71}, 3, at::kBFloat16),
                           row_sums = at::empty({101}, at::kBFloat16);
          // The product of float32 copies, rounded once.
          const at::Tensor wide = gemm(a.to(at::kFloat), b.to(at::kFloat), plain);
          GemmOptions options = plain;
          options.row_sums = row_sums;
          expect_same_bits(gemm(a, b, options), wide.to(at::kBFloat16));
          const at::Tensor as_matrix = transpose_a ? a.t() : a;
          expect_close(row_sums, as_matrix.to(at::kDouble).sum(1), 0x1p-7);
          options = plain;
          options.bias = bias;
          expect_close(gemm(a, b, options), wide.to(at::kDouble) + bias.to(at::kDouble), 0x1p-7);
          at::Tensor sum = normal({101, 71}, 4, at::kBFloat16);
          const at::Tensor expected = sum.to(at::kDouble) + wide.to(at::kDouble);
          options = plain;
          options.accumulate = true;
          gemm_into(sum, a, b, options);
          expect_close(sum, expected, 0x1p-7);
        }
      }
    }
    // Strides other than 1: every second row and column.
    const at::Tensor x = normal({60, 80}, 5, at::kBFloat16).slice(0, 0, 60, 2).slice(1, 0, 80, 2),
                     y = normal({40, 9}, 6, at::kBFloat16);
    expect_same_bits(gemm(x, y), gemm(x.to(at::kFloat), y.to(at::kFloat)).to(at::kBFloat16));
  });
  EXPECT_GE(widened, 1);
}

TEST(Gemm, RefusesWithBothShapes) {
  const at::Tensor a = at::zeros({3, 4}), b = at::zeros({5, 6});
  EXPECT_THAT(user_error([&] { gemm(a, b); }),
              AllOf(HasSubstr("[3, 4]"), HasSubstr("[5, 6]"), HasSubstr("inner")));
  EXPECT_THAT(user_error([&] { gemm(a, at::zeros({4, 2}, at::kDouble)); }), HasSubstr("dtype"));
  EXPECT_THAT(user_error([&] { gemm(a, at::zeros({4})); }), HasSubstr("matrices"));
  EXPECT_THAT(user_error([&] { gemm(a, at::zeros({4, 2}), {.accumulate = true}); }),
              HasSubstr("gemm_into"));
  at::Tensor c = at::zeros({2, 3}).t(), d = at::zeros({9, 9});
  EXPECT_THAT(user_error([&] { gemm_into(c, a, at::zeros({4, 2})); }), HasSubstr("contiguous"));
  EXPECT_THAT(user_error([&] { gemm_into(d, a, at::zeros({4, 2})); }), HasSubstr("[9, 9]"));
}

}  // namespace
}  // namespace dovetail::ops::gemm_test
