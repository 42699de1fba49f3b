// Products are bitwise equal to plain loops of fused multiply-adds.
#include "dovetail/fit/rows/products_simd.h"

#include <cmath>

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

}  // namespace
}  // namespace dovetail::fit::testing::products_test
