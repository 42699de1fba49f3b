#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dovetail::fit {

/// Algebra of small dense matrices of float64, contiguous, on the calling thread and in plain
/// order: the bits of LAPACK depend on the number of threads.

/// Of all elements, in their order.
double sum_of_products(const at::Tensor& a, const at::Tensor& b);

/// matrix (M, D) vector (D).
at::Tensor product(const at::Tensor& matrix, const at::Tensor& vector);

/// Of n scores: they become their softmax.
struct Softmax {
  int64_t largest;  ///< the first of the largest scores
  double log_sum;   ///< log of the sum of their exponentials
};
Softmax softmax(double* scores, int64_t n);

/// The lower triangle L (D, D) with L L^T = a for a symmetric a (D, D).
///
/// Column j depends on those before it where what they leave of a(j, j) is at most `tolerance` of
/// it: `dependent` names it, and its row and column of L are those of the identity.
struct Cholesky {
  at::Tensor lower;
  std::vector<int64_t> dependent = {};
};
Cholesky cholesky(const at::Tensor& a, double tolerance);

/// Eigenvalues of a symmetric a (D, D), the largest first, and their vectors as columns, by
/// Jacobi's rotations.
struct Eigen {
  at::Tensor values, vectors;
};
Eigen eigen(const at::Tensor& a);

/// Columns (D, R), R <= D, made orthonormal one after another; one that those before it determine
/// becomes another direction.
void orthonormalize(at::Tensor& columns);

/// L^-1 (D, D), lower.
at::Tensor inverse_of_lower(const at::Tensor& lower);

}  // namespace dovetail::fit
