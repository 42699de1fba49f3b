#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/data/matrix/matrix.h"
#include "dovetail/fit/kmeans/kmeans.h"

namespace dovetail::cli {

/// Returns the initial centres (K, D), with K = `num_centres`. They are in the coordinates of
/// matrix.x, which are the file's values minus matrix.origin. `init` is the value of --init: a name
/// of fit::KMeansInit, or a file with a table of K rows.
at::Tensor centres_by(const std::string& init, const data::Matrix& matrix, fit::KMeansData& data,
                      int64_t num_centres, int64_t seed);

/// Returns the places of `columns` among the columns of a file of centres, (D) int64. They match by
/// name, or by order if either side has no names. `file` names the file in messages. Throws
/// UserError if a column is missing.
at::Tensor places_in(const data::Matrix& centres, const std::vector<std::string>& columns,
                     const std::string& file);

/// Some rows (S, D) of a table, with their labels or targets (S), for a picture and a silhouette.
struct RowSample {
  at::Tensor x, labels;
};
/// Returns all rows, or 2000 rows drawn at random by `seed` if there are more.
RowSample sample_rows(const at::Tensor& x, const at::Tensor& labels, int64_t seed);

}  // namespace dovetail::cli
