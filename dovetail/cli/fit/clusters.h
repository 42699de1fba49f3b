#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "dovetail/data/matrix/matrix.h"
#include "dovetail/fit/kmeans/kmeans.h"

namespace dovetail::cli {

/// Initial centres (K, D) in the space of matrix.x by the value of --init: a name of
/// fit::KMeansInit, or a table of K rows.
at::Tensor centres_by(const std::string& init, const Matrix& matrix, fit::KMeansData& data,
                      int64_t num_centres, int64_t seed);

/// Rows of a picture and of a silhouette: all, or 2000 that the seed draws.
struct RowSample {
  at::Tensor x, labels;
};
RowSample sample_rows(const at::Tensor& x, const at::Tensor& labels, int64_t seed);

}  // namespace dovetail::cli
