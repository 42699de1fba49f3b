#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dovetail/fit/rows/dense.h"

namespace dovetail::fit {

/// Returns the `wanted` largest eigenvalues of a symmetric matrix a (D, D) float64, and their
/// eigenvectors (D, wanted). Reads only the upper triangle. Everything runs on one thread, so the
/// bits do not depend on the number of threads.
///
/// Few eigenvectors of a large matrix are found in mixed precision. LAPACK finds all eigenvectors
/// in float32, in less than half of its time in float64. Then steps of Rayleigh and Ritz refine the
/// wanted ones in float64. They correct a vector v with value s by (A - s)^-1 (A v - s v), with A
/// from the float32 eigenvectors. If that does not converge, LAPACK solves in float64.
Eigen largest_eigen(const at::Tensor& a, int64_t wanted);

/// Method of largest_eigen in mixed precision, on torch's threads. Returns undefined tensors if it
/// does not converge. `wanted` must be at most D - kGuards.
Eigen refined_eigen(const at::Tensor& a, int64_t wanted);

/// Eigenvectors that refined_eigen refines beside the wanted ones.
constexpr int64_t kGuards = 8;

}  // namespace dovetail::fit
