#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dovetail::cli {

/// Clusters to draw. They come from k-means, or from a mixture whose components are shown as
/// clusters.
struct Clusters {
  at::Tensor sample;   ///< (S, D): sample of the rows
  at::Tensor labels;   ///< (S) int32: cluster of each row of the sample
  at::Tensor centres;  ///< (K, D) float64
  at::Tensor counts;   ///< (K) int64: number of rows of each cluster in the whole table
};

/// Returns the colour of cluster or executor number `index`, for CSS. Colours of consecutive
/// numbers differ much.
std::string cluster_colour(int64_t index);

/// Returns a chart of the sample and the centres along two directions (fit::PicturePlane), with a
/// legend of the largest clusters. An axis on which few rows lie far from all others is
/// logarithmic there. Rows on a line are drawn by cluster.
std::string clusters_chart(const Clusters& clusters);

/// Returns a chart of points (S, 2) without clusters; its axes have `names`.
std::string points_chart(const std::string& title, const at::Tensor& points,
                         const std::vector<std::string>& names);

/// Return the sizes of the clusters (K), largest first: as a chart, and as a table of at most 1000
/// clusters.
std::string sizes_chart(const at::Tensor& counts);
std::string sizes_table(const at::Tensor& counts);

}  // namespace dovetail::cli
