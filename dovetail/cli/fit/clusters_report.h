#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dovetail/fit/kmeans/cluster_metrics.h"

namespace dovetail::cli {

/// What the page of a clustering is made from: k-means, or a mixture, whose components are its
/// clusters.
struct ClustersPage {
  std::string title, verdict, where;
  std::string algorithm;                                     ///< in the heading
  std::vector<std::pair<std::string, std::string>> figures;  ///< label and value
  std::string measure;                                       ///< "inertia"
  std::vector<double> curve;                                 ///< its value in every iteration
  at::Tensor sample;                                         ///< (S, D) of the rows
  at::Tensor labels;                                         ///< (S) int32
  at::Tensor centres, counts;
  fit::PrincipalPlane plane;  ///< of the sample
  std::string command;
};

/// One self-contained page: figures, the sample and the centres along two principal components, the
/// measure by iteration, the sizes of the clusters.
std::string clusters_page(const ClustersPage& page);

}  // namespace dovetail::cli
