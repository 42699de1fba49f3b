#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dovetail/hybrid/cluster_metrics.h"
#include "dovetail/hybrid/kmeans.h"

namespace dovetail::cli {

/// What the page of a clustering is made from.
struct KMeansPage {
  std::string title, verdict, where;
  std::vector<std::pair<std::string, std::string>> figures;  ///< label and value
  std::vector<hybrid::LloydIteration> iterations;
  at::Tensor sample;  ///< (S, D) of the rows
  at::Tensor labels;  ///< (S) int32
  at::Tensor centres, counts;
  hybrid::PrincipalPlane plane;  ///< of the sample
  std::string command;
};

/// One self-contained page: figures, the sample and the centres along two principal components, the inertia by
/// iteration, the sizes of the clusters.
std::string kmeans_page(const KMeansPage& page);

}  // namespace dovetail::cli
