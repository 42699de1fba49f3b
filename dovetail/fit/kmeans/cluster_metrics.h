#pragma once

#include <ATen/core/Tensor.h>

namespace dovetail::fit {

/// Returns the mean silhouette (Rousseeuw 1987) of the rows x (S, D) with labels (S) int32. The
/// silhouette of a row is (b - a) / max(a, b). Here a is the mean distance to the other rows with
/// its label. For each other label, take the mean distance to the rows with that label; b is the
/// smallest one. A row alone with its label has silhouette 0. Returns NaN for fewer than two
/// clusters. Computes S^2 distances, so pass a sample of a large data set.
double silhouette(const at::Tensor& x, const at::Tensor& labels);

/// Plane for a picture of rows x (S, D). It contains the mean of the rows and the two directions of
/// their largest variances.
struct PrincipalPlane {
  at::Tensor mean;  ///< (D) float64
  /// Directions as columns, (D, 2) float64. The second one is zero if min(S, D) is 1.
  at::Tensor directions;
  double share[2] = {0, 0};  ///< fraction of the total variance along each direction
};
/// Returns the plane of rows x (S, D), S >= 1.
PrincipalPlane principal_plane(const at::Tensor& x);

}  // namespace dovetail::fit
