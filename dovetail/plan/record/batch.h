#pragma once

#include <cstdint>

#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// A step recorded with some number of images or sequences at a time.
struct RecordedBatch {
  const CapturedStep& step;
  int64_t batch = 0;
};

/// The step that would be recorded at `batch`, for planning alone: every size, stride and offset of
/// a tensor, and the bytes of every storage, on the line through those of two recordings at
/// different batches. That is exact where the step does the same operations at every batch, as both
/// recordings must, and no dimension is a product of it with itself.
///
/// Of the memory that operations allocate only the tensors that they make are kept: what the
/// kernels of this machine take beside them grows as it likes, and says nothing of another's.
/// Numbers among the arguments are those of `b`. Throws UserError naming the operation where the
/// two do other things, or where a line misses the whole numbers.
CapturedStep at_batch(const RecordedBatch& a, const RecordedBatch& b, int64_t batch);

}  // namespace dovetail::plan
