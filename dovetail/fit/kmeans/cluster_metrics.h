#pragma once

#include <ATen/core/Tensor.h>

namespace dovetail::fit {

/// Returns the mean silhouette (Rousseeuw 1987) of the rows x (S, D) with labels (S) int32. The
/// silhouette of a row is (b - a) / max(a, b). Here a is the mean distance to the other rows of its
/// cluster. The smallest mean distance to the rows of another cluster is b. A row alone in its
/// cluster has silhouette 0. Returns NaN for fewer than two clusters. Computes S^2 distances, so
/// pass a sample of a large data set.
double silhouette(const at::Tensor& x, const at::Tensor& labels);

/// Two directions along which the rows x (S, D), S >= 1, have the largest variances, and the share
/// of the total variance along each.
struct PrincipalPlane {
  at::Tensor mean;        ///< (D) float64
  at::Tensor directions;  ///< (D, 2) float64; the second column is zero if min(S, D) is 1
  double share[2] = {0, 0};
};
PrincipalPlane principal_plane(const at::Tensor& x);

}  // namespace dovetail::fit
