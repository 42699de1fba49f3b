#pragma once

#include <cstdint>

#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// Step recorded with `batch` images or sequences.
struct RecordedBatch {
  const CapturedStep& step;
  int64_t batch = 0;
};

/// Extrapolates two recordings at different batches to the step at `batch`, for planning only.
/// Every size, stride, offset and number of bytes lies on the line through the two recordings. Both
/// must run the same operations. The result is exact if every batch has these operations. Also, no
/// dimension may grow with the square of the batch.
///
/// Of all allocations inside operations, only tensors that the operations make are kept. Scratch
/// memory of kernels need not be linear in the batch and differs on other machines. Numbers among
/// the arguments are taken from `b`. Throws UserError that names the operation if the recordings
/// differ in their operations. Also if a value on a line is not a whole number.
CapturedStep at_batch(const RecordedBatch& a, const RecordedBatch& b, int64_t batch);

}  // namespace dovetail::plan
