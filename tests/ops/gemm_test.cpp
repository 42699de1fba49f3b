#include "dovetail/ops/gemm.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/testing.h"

namespace dovetail {
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

/// Within the error of a float32 sum of k products: some units in the last place of the sum of their magnitudes,
/// growing like sqrt(k).
void expect_product(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, GemmOptions o = {}) {
  const at::Tensor expected = reference(a, b, o), magnitude = reference(a.abs(), b.abs(), o);
  ASSERT_EQ(c.sizes(), expected.sizes());
  const double k = static_cast<double>(o.transpose_a ? a.size(0) : a.size(1));
  const at::Tensor bound = magnitude * (4 * std::sqrt(k + 1) * 0x1p-24);
  EXPECT_TRUE(((c.to(at::kDouble) - expected).abs() <= bound).all().item<bool>())
      << "off by " << (c.to(at::kDouble) - expected).abs().max().item<double>();
}

at::Tensor operand(int64_t rows, int64_t columns, bool transposed, uint64_t seed, at::ScalarType dtype = at::kFloat) {
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
            SCOPED_TRACE(::testing::Message() << m << " x " << n << " x " << k << " " << transpose_a << transpose_b);
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
  EXPECT_THAT(user_error([&] { gemm_into(c, a, b, {.bias = at::ones({2})}); }), HasSubstr("bias must be [3]"));
  EXPECT_THAT(user_error([&] { gemm_into(c, a, b, {.row_sums = at::ones({3})}); }), HasSubstr("row_sums must be [2]"));
  EXPECT_THAT(user_error([&] { gemm_into(c, a, b, {.accumulate = true, .bias = at::ones({3})}); }),
              HasSubstr("exclude each other"));
}

TEST(Gemm, AccumulatesIntoAViewWithLongRows) {
  at_every_simd_level([] {
    const at::Tensor a = normal({29, 411}, 1), b = normal({411, 35}, 2), storage = normal({29, 50}, 3);
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
  for (const auto dtype : {at::kDouble, at::kBFloat16}) {
    const at::Tensor a = normal({17, 23}, 1, dtype), b = normal({23, 9}, 2, dtype);
    expect_same_bits(gemm(a, b), at::mm(a, b));
  }
}

TEST(Gemm, RefusesWithBothShapes) {
  const at::Tensor a = at::zeros({3, 4}), b = at::zeros({5, 6});
  EXPECT_THAT(user_error([&] { gemm(a, b); }), AllOf(HasSubstr("[3, 4]"), HasSubstr("[5, 6]"), HasSubstr("inner")));
  EXPECT_THAT(user_error([&] { gemm(a, at::zeros({4, 2}, at::kDouble)); }), HasSubstr("dtype"));
  EXPECT_THAT(user_error([&] { gemm(a, at::zeros({4})); }), HasSubstr("matrices"));
  EXPECT_THAT(user_error([&] { gemm(a, at::zeros({4, 2}), {.accumulate = true}); }), HasSubstr("gemm_into"));
  at::Tensor c = at::zeros({2, 3}).t(), d = at::zeros({9, 9});
  EXPECT_THAT(user_error([&] { gemm_into(c, a, at::zeros({4, 2})); }), HasSubstr("contiguous"));
  EXPECT_THAT(user_error([&] { gemm_into(d, a, at::zeros({4, 2})); }), HasSubstr("[9, 9]"));
}

}  // namespace
}  // namespace dovetail
