#pragma once

#include <cstdint>
#include <vector>

#include "dovetail/embedding/pack/row_format.h"

namespace dovetail::embedding {

/// A feature's table and its place in the pooled output.
struct PoolFeature {
  const char* rows;  ///< stored, row_bytes each
  int64_t row_bytes, dim, column;
  bool mean;
};

struct PoolProblem {
  RowDtype dtype;
  std::vector<PoolFeature> features;
  const int64_t *values, *offsets;
  const float* weights;  ///< or null
  int64_t samples;
  float* y;
  int64_t columns;  ///< floats between the rows of y
  bool stream;      ///< whether y is written past the caches; its rows and columns then begin at
                    ///< vectors' boundaries
};

/// y[b, column of f onwards] = the sum of weight * row over the bag (f, b), in order, for samples
/// [begin, end) of one feature f; over a mean's bag times 1 / its size; zero for an empty bag. On
/// the calling thread.
void pool_samples(const PoolProblem& problem, int64_t feature, int64_t begin, int64_t end);

}  // namespace dovetail::embedding
