#pragma once

#include <cstdint>
#include <vector>

#include "dovetail/embedding/pack/row_format.h"

namespace dovetail::embedding {

/// Table of a feature, and the feature's first column in the pooled output.
struct PoolFeature {
  const char* rows;  ///< stored format, row_bytes each
  int64_t row_bytes, dim, column;
  bool mean;
};

struct PoolProblem {
  RowDtype dtype;
  std::vector<PoolFeature> features;
  const int64_t *values, *offsets;
  const float* weights;  ///< null if the batch has no weights
  int64_t samples;
  float* y;
  int64_t columns;  ///< floats between the rows of y
  /// Writes y past the caches. Then every row and feature column of y must begin at a vector
  /// boundary.
  bool stream;
};

/// Pools samples [begin, end) of one feature on the calling thread. For each sample, y's columns of
/// the feature become the sum of weight * row over the bag, in its order. A mean is multiplied by 1
/// / (size of the bag). An empty bag gives zeros.
void pool_samples(const PoolProblem& problem, int64_t feature, int64_t begin, int64_t end);

}  // namespace dovetail::embedding
