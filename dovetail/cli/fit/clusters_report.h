#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dovetail/fit/kmeans/cluster_metrics.h"

namespace dovetail::cli {

/// Content of the HTML page about a clustering. The clustering comes from k-means, or from a
/// mixture whose components are shown as clusters.
struct ClustersPage {
  /// `verdict` is a summary in one sentence. `where` names the table's file and the CPU.
  std::string title, verdict, where;
  std::string algorithm;  ///< shown in the heading
  /// Figures to show, as label and value.
  std::vector<std::pair<std::string, std::string>> figures;
  std::string measure;        ///< name of the measure of convergence, such as "inertia"
  std::vector<double> curve;  ///< value of the measure in each iteration
  at::Tensor sample;          ///< (S, D): sample of the rows, to draw
  at::Tensor labels;          ///< (S) int32: cluster of each row of the sample
  /// Centres of the clusters (K, D), and number of rows of each in the whole table, (K) int64.
  at::Tensor centres, counts;
  fit::PrincipalPlane plane;  ///< plane on which the sample is drawn
  std::string command;        ///< command line that repeats the clustering
};

/// Returns an HTML page that needs no other file. It shows the figures, the measure by iteration
/// and the sizes of the clusters. It also draws the sample and the centres along the two directions
/// of `plane`.
std::string clusters_page(const ClustersPage& page);

}  // namespace dovetail::cli
