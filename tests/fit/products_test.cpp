// Products are bitwise equal to plain loops of fused multiply-adds.
#include "dovetail/fit/rows/products_simd.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "dovetail/fit/rows/rows.h"
#include "dovetail/ops/simd_level.h"
#include "tests/ops/testing.h"

namespace dovetail::fit::testing::products_test {
namespace {

using namespace dovetail::testing;

TEST(Product, AddsInOrderWithOneRoundingEach) {
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{1, 1, 1}, {7, 5, 3}, {6, 16, 40}, {13, 33, 0}, {20, 9, 257}})
    for (const bool transposed : {false, true}) {
      const at::Tensor a = normal({m, k}, 1, at::kDouble), b = normal({k, n + 3}, 2, at::kDouble);
      const at::Tensor given = transposed ? a.t().contiguous() : a;
      const at::Tensor c = normal({m, n + 2}, 3, at::kDouble), expected = c.clone();
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double& sum = expected.mutable_data_ptr<double>()[i * (n + 2) + j];
          for (int64_t p = 0; p < k; ++p)
            sum =
                std::fma(a[i][p].item<double>(), b.const_data_ptr<double>()[p * (n + 3) + j], sum);
        }
      add_product({.a = given.const_data_ptr<double>(),
                   .a_row = transposed ? 1 : k,
                   .a_column = transposed ? m : 1,
                   .b = b.const_data_ptr<double>(),
                   .b_row = n + 3,
                   .c = c.mutable_data_ptr<double>(),
                   .c_row = n + 2,
                   .m = m,
                   .n = n,
                   .k = k});
      EXPECT_TRUE(at::equal(c, expected))
          << m << " x " << n << " x " << k << ", transposed " << transposed;
    }
}

/// Expects equal bits where the instruction set has fused multiply-adds, else close values.
void expect_equal_or_close(const at::Tensor& actual, const at::Tensor& expected) {
  if (ops::simd_level() != ops::SimdLevel::kScalar)
    EXPECT_TRUE(at::equal(actual, expected)) << expected.sizes();
  else
    expect_close(actual, expected, 1e-13);
}

TEST(Product, SquaresAndMomentsAreThoseOfPlainLoops) {
  at_every_simd_level([] {
    for (const int64_t dim : {1, 3, 4, 5, 12, 13, 20, 24, 25, 50})
      for (const int64_t rows : {1, 128, 300}) {
        const auto type = dim % 2 == 0 ? at::kDouble : at::kFloat;
        const at::Tensor x = normal({rows, dim}, 1, type), point = normal({dim}, 2, at::kDouble);
        const at::Tensor sum = normal({dim, dim}, 3, at::kDouble),
                         moments = normal({2, dim}, 4, at::kDouble);
        const at::Tensor expected = sum.clone(), expected_moments = moments.clone();
        const at::Tensor z = x.to(at::kDouble) - point;
        const auto* value = z.const_data_ptr<double>();
        auto *square = expected.mutable_data_ptr<double>(),
             *moment = expected_moments.mutable_data_ptr<double>();
        for (int64_t r = 0; r < rows; ++r, value += dim)
          for (int64_t i = 0; i < dim; ++i) {
            moment[i] += value[i];
            moment[dim + i] = std::fma(value[i], value[i], moment[dim + i]);
            for (int64_t j = i; j < dim; ++j)
              square[i * dim + j] = std::fma(value[i], value[j], square[i * dim + j]);
          }
        // Two calls: the rows may be cut anywhere.
        const int64_t cut = rows / 3;
        const auto* shift = point.const_data_ptr<double>();
        auto* first = moments.mutable_data_ptr<double>();
        for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, cut), {cut, rows}})
          with_rows(x, begin, [&](const auto* from) {
            add_squares(from, shift, end - begin, dim, sum.mutable_data_ptr<double>());
            add_moments(from, shift, end - begin, dim, first, first + dim);
          });
        expect_equal_or_close(sum.triu(), expected.triu());
        expect_equal_or_close(moments, expected_moments);
      }
  });
}

TEST(Product, FloatSquaresAddBlocksOfPlainLoopsInFloat64) {
  at_every_simd_level([] {
    for (const int64_t dim : {1, 4, 5, 24, 25, 40, 48, 50, 100})
      for (const int64_t rows : {1, 128, 300}) {
        const at::Tensor x = normal({rows, dim}, 1), point = normal({dim}, 2);
        const at::Tensor sum = normal({dim, dim}, 3, at::kDouble), expected = sum.clone();
        const at::Tensor z = x - point;
        for (int64_t begin = 0; begin < rows; begin += kSquareBlock) {
          const int64_t end = std::min(rows, begin + kSquareBlock);
          for (int64_t i = 0; i < dim; ++i)
            for (int64_t j = i; j < dim; ++j) {
              float block = 0;
              for (int64_t r = begin; r < end; ++r)
                block = std::fma(z.const_data_ptr<float>()[r * dim + i],
                                 z.const_data_ptr<float>()[r * dim + j], block);
              expected.mutable_data_ptr<double>()[i * dim + j] += static_cast<double>(block);
            }
        }
        const int64_t cut = std::min(rows, kSquareBlock);
        for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, cut), {cut, rows}})
          add_float_squares(x.const_data_ptr<float>() + begin * dim, point.const_data_ptr<float>(),
                            end - begin, dim, sum.mutable_data_ptr<double>());
        if (ops::simd_level() != ops::SimdLevel::kScalar)
          EXPECT_TRUE(at::equal(sum.triu(), expected.triu())) << rows << " x " << dim;
        else
          expect_close(sum.triu(), expected.triu(), 1e-5);
      }
  });
}

TEST(Product, FloatSquaresAreWithinTheirBound) {
  for (const double offset : {0.0, 1e3}) {
    const int64_t rows = 4096, dim = 64;
    const at::Tensor x = normal({rows, dim}, 1) + offset, point = x.mean(0);
    const at::Tensor z = x.to(at::kDouble) - point, sum = at::zeros({dim, dim}, at::kDouble);
    add_float_squares(x.const_data_ptr<float>(), point.const_data_ptr<float>(), rows, dim,
                      sum.mutable_data_ptr<double>());
    const at::Tensor wrong = (sum - z.t().matmul(z)).triu().abs(),
                     sizes = z.abs().t().matmul(z.abs());
    const double u = std::ldexp(1.0, -24), blocks = static_cast<double>(rows / kSquareBlock);
    const double largest = (wrong / sizes).max().item<double>();
    EXPECT_LT(largest, 20 * u / std::sqrt(blocks));
    EXPECT_GT(largest, 0);
  }
}

}  // namespace
}  // namespace dovetail::fit::testing::products_test
