#include "dovetail/ops/gemm_gpu.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/ops/testing.h"

namespace dovetail::ops::gemm_gpu_test {
namespace {

using testing::normal;

/// The product as GroupedProduct's comment says, on memory of the CPU.
void multiply(const GroupedProduct& p) {
  const auto at = [](const GroupedProduct::Operand& x, int64_t row, int64_t column) {
    const auto* data = static_cast<const float*>(x.data);
    return data[x.transposed ? column * x.stride + row : row * x.stride + column];
  };
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      float& c = static_cast<float*>(p.c)[i * p.c_stride + j];
      if (!p.accumulate) c = 0;
      for (int64_t l = 0; l < p.k; ++l) c += at(p.a, i, l) * at(p.b, l, j);
    }
  }
}

TEST(GemmGpu, ProductsAreDescribedAsTheyLie) {
  for (const auto& [m, n, k] : {std::tuple(5, 7, 3), {1, 7, 3}, {5, 1, 3}, {5, 7, 1}, {1, 1, 1}}) {
    const auto lying = [](int64_t rows, int64_t columns, uint64_t seed) {
      return std::vector<at::Tensor>{normal({rows, columns}, seed),
                                     normal({columns, rows}, seed).t(),
                                     normal({rows, columns + 4}, seed).narrow(1, 2, columns),
                                     normal({columns, rows + 4}, seed).narrow(1, 1, rows).t()};
    };
    for (const at::Tensor& a : lying(m, k, 1)) {
      for (const at::Tensor& b : lying(k, n, 2)) {
        for (const bool accumulate : {false, true}) {
          const at::Tensor c = normal({m, n + 2}, 3).narrow(1, 0, n);
          const at::Tensor expected =
              at::mm(a.to(at::kDouble), b.to(at::kDouble)) +
              (accumulate ? c.to(at::kDouble) : at::zeros({m, n}, at::kDouble));
          const auto described = describe_product(c, a, b, accumulate);
          ASSERT_TRUE(described);
          const GroupedProduct& product = *described;
          EXPECT_GE(product.a.stride, product.a.transposed ? m : k);
          EXPECT_GE(product.b.stride, product.b.transposed ? k : n);
          EXPECT_GE(product.c_stride, n);
          multiply(product);
          testing::expect_close(c, expected, 1e-5);
        }
      }
    }
  }
}

TEST(GemmGpu, WhatCublasDoesNotTakeIsRefused) {
  const at::Tensor c = at::zeros({4, 4}),
                   apart = at::zeros({8, 8}).slice(0, 0, 8, 2).slice(1, 0, 8, 2);
  EXPECT_FALSE(describe_product(c, apart, c, false));
  EXPECT_FALSE(describe_product(c, c, apart, false));
  const at::Tensor halves = at::zeros({40}, at::kBFloat16),
                   at_8 = halves.narrow(0, 8, 16).view({4, 4}),
                   at_1 = halves.narrow(0, 1, 16).view({4, 4});
  EXPECT_TRUE(describe_product(at_8, at_8, at_8, false));
  EXPECT_FALSE(describe_product(at_8, at_1, at_8, false));
  EXPECT_FALSE(describe_product(at_8, at_8, at_1, false));
  EXPECT_FALSE(describe_product(at_1, at_8, at_8, false));
}

}  // namespace
}  // namespace dovetail::ops::gemm_gpu_test
