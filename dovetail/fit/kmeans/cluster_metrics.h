#pragma once

#include <ATen/core/Tensor.h>

namespace dovetail::fit {

/// Returns the mean silhouette (Rousseeuw 1987) of the rows x (S, D) with labels (S) int32. The
/// silhouette of a row is (b - a) / max(a, b). Here a is the mean distance to the other rows with
/// its label. For each other label, take the mean distance to the rows with that label; b is the
/// smallest one. A row alone with its label has silhouette 0. Returns NaN for fewer than two
/// clusters. Computes S^2 distances, so pass a sample of a large data set.
double silhouette(const at::Tensor& x, const at::Tensor& labels);

/// Plane on which a picture shows rows with D columns. The coordinates of a row x are
/// ((x - origin) / unit) directions.
struct PicturePlane {
  at::Tensor origin;  ///< (D) float64: mean of the rows
  /// (D) float64: interquartile range of each column if these differ more than tenfold; else 1.
  /// Then columns of small numbers are visible beside columns of large ones.
  at::Tensor unit;
  bool has_units = false;  ///< true if `unit` is not 1
  /// Directions as columns, (D, 2) float64. The second one is zero if all rows lie on a line.
  at::Tensor directions;
  double share[2] = {0, 0};  ///< fraction of the rows' variance along each direction

  /// Returns the coordinates (N, 2) float64 of rows (N, D), contiguous.
  at::Tensor project(const at::Tensor& rows) const;
};
/// Returns the plane on which clusters of the rows x (S, D), S >= 1, differ most. Its directions
/// are the principal components of the rows after each row was replaced by its centre,
/// centres[labels[i]]. Where the centres span no plane, the principal components of the rows
/// follow. `labels` is (S) int32, `centres` is (K, D).
PicturePlane picture_plane(const at::Tensor& x, const at::Tensor& labels,
                           const at::Tensor& centres);

}  // namespace dovetail::fit
