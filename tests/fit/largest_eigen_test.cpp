// Compares the largest eigenvalues in mixed precision with LAPACK's in float64.
#include "dovetail/fit/components/largest_eigen.h"

#include <ATen/Parallel.h>

#include "tests/ops/testing.h"

namespace dovetail::fit::testing::largest_eigen_test {
namespace {

using namespace dovetail::testing;

constexpr int64_t kDim = 300, kWanted = 10;

/// Returns a symmetric matrix with these eigenvalues. Its lower triangle is NaN.
at::Tensor matrix(const at::Tensor& values) {
  const at::Tensor turn = std::get<0>(at::linalg_qr(normal({kDim, kDim}, 3, at::kDouble)));
  const at::Tensor a = (turn * values).matmul(turn.t());
  const at::Tensor lower = at::ones_like(a).tril(-1).to(at::kBool);
  return ((a + a.t()) / 2).masked_fill(lower, std::numeric_limits<double>::quiet_NaN());
}

void expect_largest(const Eigen& ours, const at::Tensor& a) {
  const at::Tensor full = a.triu() + a.triu(1).t();
  const at::Tensor values = std::get<0>(at::linalg_eigh(full));
  const double size = values.abs().max().item<double>();
  ASSERT_EQ(ours.vectors.sizes(), (std::vector<int64_t>{kDim, kWanted}));
  expect_close(ours.values / size, values.flip(0).narrow(0, 0, kWanted) / size, 1e-14);
  expect_close((full / size).matmul(ours.vectors), ours.vectors * ours.values / size, 1e-14);
  expect_close(ours.vectors.t().matmul(ours.vectors), at::eye(kWanted, at::kDouble), 1e-13);
}

TEST(LargestEigen, AreFoundInMixedPrecision) {
  const at::Tensor falling = at::logspace(1, -1, kDim, 10.0, at::kDouble);
  at::Tensor pairs = falling.clone();  // each of the wanted values occurs twice
  for (int64_t i = 1; i < 2 * kWanted; i += 2) pairs[i] = pairs[i - 1];
  const at::Tensor below_zero = at::linspace(-3, 1, kDim, at::kDouble);
  at::Tensor few = at::zeros({kDim}, at::kDouble);
  few.narrow(0, 0, kWanted).copy_(falling.narrow(0, 0, kWanted));
  for (const at::Tensor& values : {falling, pairs, below_zero, few, falling * 1e-60}) {
    const at::Tensor a = matrix(values);
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const Eigen refined = refined_eigen(a, kWanted);
    ASSERT_TRUE(refined.values.defined());
    expect_largest(refined, a);
    for (const int n : {1, 2}) {
      at::set_num_threads(n);
      EXPECT_TRUE(at::equal(largest_eigen(a, kWanted).vectors, refined.vectors)) << n;
    }
    at::set_num_threads(threads);
  }
}

TEST(LargestEigen, ThatFloat32CannotTellApartAreSolvedInFloat64) {
  const at::Tensor close = 1 + at::linspace(1e-7, 0, kDim, at::kDouble);
  for (const at::Tensor& values : {close, at::zeros({kDim}, at::kDouble)}) {
    const at::Tensor a = matrix(values);
    EXPECT_FALSE(refined_eigen(a, kWanted).values.defined());
    const Eigen ours = largest_eigen(a, kWanted);
    const at::Tensor all = std::get<0>(at::linalg_eigh(a, "U"));
    expect_close(ours.values, all.flip(0).narrow(0, 0, kWanted), 1e-14);
  }
}

TEST(LargestEigen, OfASmallMatrixOrOfMostVectorsAreThoseOfLapack) {
  const at::Tensor a = matrix(at::linspace(1, 2, kDim, at::kDouble));
  const auto [values, vectors] = at::linalg_eigh(a, "U");
  EXPECT_TRUE(at::allclose(largest_eigen(a, kDim).values, values.flip(0), 0, 1e-14));
  const at::Tensor corner = a.narrow(0, 0, 2).narrow(1, 0, 2);
  EXPECT_TRUE(at::allclose(largest_eigen(corner, 1).values,
                           std::get<0>(at::linalg_eigh(corner, "U")).narrow(0, 1, 1), 0, 1e-14));
}

}  // namespace
}  // namespace dovetail::fit::testing::largest_eigen_test
