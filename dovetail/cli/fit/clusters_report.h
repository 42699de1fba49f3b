#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dovetail/fit/kmeans/cluster_metrics.h"

namespace dovetail::cli {

/// Content of the page about a clustering: k-means, or a mixture with its components as clusters.
struct ClustersPage {
  std::string title, verdict, where;
  std::string algorithm;                                     ///< shown in the heading
  std::vector<std::pair<std::string, std::string>> figures;  ///< label and value
  std::string measure;        ///< name of the measure, such as "inertia"
  std::vector<double> curve;  ///< value of the measure in every iteration
  at::Tensor sample;          ///< (S, D): a sample of the rows
  at::Tensor labels;          ///< (S) int32: clusters of the sample
  at::Tensor centres, counts;
  fit::PrincipalPlane plane;  ///< plane of the sample
  std::string command;
};

/// Returns one self-contained page: figures, the measure by iteration and the sizes of the
/// clusters. It also draws the sample and the centres along two principal components.
std::string clusters_page(const ClustersPage& page);

}  // namespace dovetail::cli
