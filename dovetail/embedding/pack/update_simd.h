#pragma once

#include <cstdint>

#include "dovetail/embedding/pack/occurrences.h"
#include "dovetail/embedding/pack/row_format.h"
#include "dovetail/embedding/pack/row_optimizer.h"

namespace dovetail::embedding {

/// Rows of one table to update, and the occurrences (occurrences.h) that give their gradients.
struct UpdateProblem {
  const uint64_t* keys;           ///< sort keys of the occurrences, ascending, (count)
  int64_t count;                  ///< number of occurrences
  const Occurrence* occurrences;  ///< indexed by index_of(key)
  int64_t dim;                    ///< elements of a row
  RowDtype dtype;                 ///< format of the stored rows
  char* rows;                     ///< stored rows of the table, row_bytes each
  int64_t row_bytes;
  RowRounding rounding;  ///< random words for the stochastic rounding of the new rows
  float* state;          ///< optimizer state of the table's rows
  int64_t state_width;   ///< floats of state for each row
};

/// Updates each row that occurs, once and on the calling thread. The row's gradient is summed over
/// its occurrences, in float32 and in the order of the keys.
void update_rows(const UpdateProblem& problem, const UpdateScalars& scalars);

}  // namespace dovetail::embedding
