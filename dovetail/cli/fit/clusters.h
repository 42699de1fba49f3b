#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "dovetail/data/matrix/matrix.h"
#include "dovetail/fit/kmeans/kmeans.h"

namespace dovetail::cli {

/// Returns the initial centres (K, D) in the space of matrix.x. `init` is the value of --init: a
/// name of fit::KMeansInit, or a table of K rows.
at::Tensor centres_by(const std::string& init, const data::Matrix& matrix, fit::KMeansData& data,
                      int64_t num_centres, int64_t seed);

/// Rows for a picture and a silhouette: all rows, or a sample of 2000 that the seed draws.
struct RowSample {
  at::Tensor x, labels;
};
RowSample sample_rows(const at::Tensor& x, const at::Tensor& labels, int64_t seed);

}  // namespace dovetail::cli
