#pragma once

#include <ATen/core/Tensor.h>

namespace dovetail::fit {

/// The mean silhouette of x (S, D) with labels (S) int32 (Rousseeuw 1987): (b - a) / max(a, b) of
/// each row, a being its mean distance to the others of its cluster and b the least mean distance
/// to those of another; 0 for a row alone in its cluster. NaN unless there are two clusters. Needs
/// S^2 distances: for samples.
double silhouette(const at::Tensor& x, const at::Tensor& labels);

/// The directions of the two largest variances of x (S, D), S >= 1, and how much of the variance is
/// along each.
struct PrincipalPlane {
  at::Tensor mean;        ///< (D) float64
  at::Tensor directions;  ///< (D, 2) float64; a second one of zeros where there is only one
  double share[2] = {0, 0};
};
PrincipalPlane principal_plane(const at::Tensor& x);

}  // namespace dovetail::fit
