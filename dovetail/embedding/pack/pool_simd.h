#pragma once

#include <cstdint>
#include <vector>

#include "dovetail/embedding/pack/row_format.h"

namespace dovetail::embedding {

/// One feature of a lookup: its table, whose rows have `dim` elements, and its first column
/// `column` in the pooled output.
struct PoolFeature {
  const char* rows;  ///< rows of the table in stored format, row_bytes each
  int64_t row_bytes, dim, column;
  bool mean;  ///< true for Pooling::kMean
};

/// Arguments of one lookup. `values`, `offsets`, `weights` and `samples` describe the batch as in
/// Jagged. `y` is the output, (samples, columns).
struct PoolProblem {
  RowDtype dtype;  ///< format of the stored rows
  std::vector<PoolFeature> features;
  const int64_t *values, *offsets;
  const float* weights;  ///< null if the batch has no weights
  int64_t samples;
  float* y;
  int64_t columns;  ///< floats between the rows of y
  /// True: y is written with streaming stores, which bypass the caches. This requires that every
  /// row of y, and every feature's first column, begins at a vector boundary.
  bool stream;
};

/// Pools samples [begin, end) of one feature on the calling thread. A sample's ids of this feature
/// are its bag. For each sample, the sum of weight * row over the bag is written to the feature's
/// columns of y. The sum is in the order of the ids. If `mean`, the sum is multiplied by 1 / (size
/// of the bag). An empty bag gives zeros.
void pool_samples(const PoolProblem& problem, int64_t feature, int64_t begin, int64_t end);

}  // namespace dovetail::embedding
