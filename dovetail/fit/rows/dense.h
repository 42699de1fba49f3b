#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dovetail::fit {

/// Linear algebra of small dense matrices in contiguous float64. Everything runs on the calling
/// thread in a fixed order. LAPACK is not used, since its bits depend on the number of threads.

/// Returns the sum of a * b over all elements, added in element order.
double sum_of_products(const at::Tensor& a, const at::Tensor& b);

/// Returns matrix (M, D) times vector (D), a vector (M).
at::Tensor product(const at::Tensor& matrix, const at::Tensor& vector);

/// Result of `softmax`, which replaces n scores in place by their softmax.
struct Softmax {
  int64_t largest;  ///< index of the largest score; the first one of equal scores
  double log_sum;   ///< log of the sum of exp(score)
};
Softmax softmax(double* scores, int64_t n);

/// Lower triangular factor L (D, D) with L L^T = a, for a symmetric matrix a (D, D).
///
/// Column j counts as dependent on the previous columns if elimination leaves at most `tolerance` *
/// a(j, j) of the pivot. `dependent` lists these columns. Row j and column j of L are then equal to
/// the identity.
struct Cholesky {
  at::Tensor lower;
  std::vector<int64_t> dependent = {};
};
Cholesky cholesky(const at::Tensor& a, double tolerance);

/// Eigenvalues (D) of a symmetric matrix a (D, D) in descending order. The columns of `vectors` (D,
/// D) are the eigenvectors. Computed by Jacobi rotations.
struct Eigen {
  at::Tensor values, vectors;
};
Eigen eigen(const at::Tensor& a);

/// Orthonormalizes columns (D, R), R <= D, in place, from the first to the last. Replaces a column
/// that depends linearly on the previous columns by another direction.
void orthonormalize(at::Tensor& columns);

/// Returns the inverse (D, D) of a lower triangular matrix. The inverse is lower triangular, too.
at::Tensor inverse_of_lower(const at::Tensor& lower);

}  // namespace dovetail::fit
