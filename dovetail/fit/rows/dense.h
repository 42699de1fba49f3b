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

/// Result of `softmax`.
struct Softmax {
  int64_t largest;  ///< index of the largest score; the first one of equal scores
  double log_sum;   ///< log of the sum of exp(score)
};
/// Replaces n scores in place by their softmax.
Softmax softmax(double* scores, int64_t n);

/// Result of `cholesky`.
struct Cholesky {
  at::Tensor lower;                     ///< lower triangular factor L (D, D)
  std::vector<int64_t> dependent = {};  ///< columns that depend linearly on previous ones
};
/// Computes L with L L^T = a, for a symmetric matrix a (D, D). Column j counts as dependent on the
/// previous columns if its pivot is at most `tolerance` * a(j, j). Row j and column j of L are then
/// replaced by row j and column j of the identity matrix.
Cholesky cholesky(const at::Tensor& a, double tolerance);

/// Eigenvalues (D) of a matrix in descending order, and the eigenvectors as columns of (D, D).
struct Eigen {
  at::Tensor values, vectors;
};
/// Returns the eigenvalues and eigenvectors of a symmetric matrix a (D, D), by Jacobi rotations.
Eigen eigen(const at::Tensor& a);

/// Replaces the R columns of a matrix (D, R), R <= D, by orthonormal ones, from the first to the
/// last (Gram-Schmidt). If a column depends linearly on the previous ones, takes another direction
/// for it.
void orthonormalize(at::Tensor& columns);

/// Returns the inverse of a lower triangular matrix (D, D). It is lower triangular, too.
at::Tensor inverse_of_lower(const at::Tensor& lower);

}  // namespace dovetail::fit
