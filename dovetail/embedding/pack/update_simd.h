#pragma once

#include <cstdint>

#include "dovetail/embedding/pack/occurrences.h"
#include "dovetail/embedding/pack/row_format.h"
#include "dovetail/embedding/pack/row_optimizer.h"

namespace dovetail::embedding {

struct UpdateProblem {
  const uint64_t* keys;  ///< sorted
  int64_t count;
  const Occurrence* occurrences;
  int64_t dim;
  RowDtype dtype;
  char* rows;  ///< stored rows of the table, row_bytes each
  int64_t row_bytes;
  RowRounding rounding;
  float* state;
  int64_t state_width;  ///< floats of state for each row
};

/// Updates each row that occurs once, on the calling thread. The gradient G is summed in float32 in
/// the order of the keys.
void update_rows(const UpdateProblem& problem, const UpdateScalars& scalars);

}  // namespace dovetail::embedding
