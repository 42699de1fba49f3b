#pragma once

#include <cstdint>

#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// Recorded step whose batch had `batch` images or sequences.
struct RecordedBatch {
  const CapturedStep& step;
  int64_t batch = 0;
};

/// Computes from two recordings at different batch sizes the step at size `batch`, for planning
/// only. Every size, stride, offset and number of bytes lies on the line through its values in the
/// two recordings. Both must run the same operations. The result is exact if every batch size has
/// these operations. Also, no dimension may grow with the square of the batch size.
///
/// Allocations inside an operation are left out, except tensors that it creates. Scratch memory of
/// kernels need not be linear in the batch size, and differs on other machines. Numbers among the
/// arguments are taken from `b`. Throws UserError that names the operation if the recordings differ
/// in their operations. Also throws UserError if a value on a line is not a whole number.
CapturedStep at_batch(const RecordedBatch& a, const RecordedBatch& b, int64_t batch);

}  // namespace dovetail::plan
