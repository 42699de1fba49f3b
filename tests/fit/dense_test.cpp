// Compares the factor of a symmetric matrix with torch's. Also tests linearly dependent columns.
#include "dovetail/fit/rows/dense.h"

#include "tests/ops/testing.h"

namespace dovetail::fit::testing::dense_test {
namespace {

using namespace dovetail::testing;

TEST(Cholesky, IsThatOfTorch) {
  for (const int64_t dim : {1, 2, 17, 60}) {
    const at::Tensor x = normal({2 * dim, dim}, 1, at::kDouble);
    const at::Tensor a = x.t().matmul(x);
    const Cholesky factor = cholesky(a, 1e-12);
    EXPECT_TRUE(factor.dependent.empty());
    expect_close(factor.lower, at::linalg_cholesky(a), 1e-10);
    expect_close(inverse_of_lower(factor.lower).matmul(factor.lower), at::eye(dim, at::kDouble),
                 1e-10);
    EXPECT_TRUE(at::equal(inverse_of_lower(factor.lower).triu(1), at::zeros_like(a)));
  }
}

TEST(Cholesky, NamesColumnsThatOthersDetermineAndSolvesForTheRest) {
  const at::Tensor x = normal({50, 6}, 1, at::kDouble);
  x.select(1, 2).copy_(x.select(1, 0) - 2 * x.select(1, 1));
  x.select(1, 4).zero_();
  const at::Tensor a = x.t().matmul(x);
  const Cholesky factor = cholesky(a, 1e-12);
  EXPECT_EQ(factor.dependent, (std::vector<int64_t>{2, 4}));
  const at::Tensor kept = at::tensor({0, 1, 3, 5}, at::kLong);
  const auto of_kept = [&](const at::Tensor& m) {
    return m.index_select(0, kept).index_select(1, kept);
  };
  expect_close(of_kept(factor.lower.matmul(factor.lower.t())), of_kept(a), 1e-10);
}

TEST(Eigen, IsThatOfTorch) {
  for (const int64_t dim : {1, 2, 9, 24}) {
    const at::Tensor x =
        normal({dim + 3, dim}, 1, at::kDouble) * at::pow(10.0, at::arange(dim) % 5);
    for (const at::Tensor& a : {x.t().matmul(x), x.narrow(0, 0, 1).t().matmul(x.narrow(0, 0, 1))}) {
      const Eigen ours = eigen(a);
      const auto [values, vectors] = at::linalg_eigh(a);
      const double size = values.abs().max().item<double>();
      expect_close(ours.values / size, values.flip(0) / size, 1e-14);
      expect_close(a.matmul(ours.vectors) / size, ours.vectors * ours.values / size, 1e-13);
      expect_close(ours.vectors.t().matmul(ours.vectors), at::eye(dim, at::kDouble), 1e-12);
    }
  }
}

TEST(Orthonormalize, KeepsTheSpanAndReplacesWhatAddsNothing) {
  const at::Tensor x = normal({20, 5}, 1, at::kDouble);
  at::Tensor q = x.clone();
  orthonormalize(q);
  expect_close(q.t().matmul(q), at::eye(5, at::kDouble), 1e-13);
  expect_close(q.matmul(q.t().matmul(x)), x, 1e-12);
  q = x.clone();
  q.select(1, 2).copy_(x.select(1, 0) + x.select(1, 1));
  q.select(1, 4).zero_();
  orthonormalize(q);
  expect_close(q.t().matmul(q), at::eye(5, at::kDouble), 1e-13);
}

TEST(Dense, ProductsAreThoseOfTorch) {
  const at::Tensor a = normal({5, 9}, 1, at::kDouble), x = normal({9}, 2, at::kDouble);
  expect_close(product(a, x), a.mv(x), 1e-13);
  EXPECT_NEAR(sum_of_products(a, a), a.square().sum().item<double>(), 1e-12);
}

}  // namespace
}  // namespace dovetail::fit::testing::dense_test
