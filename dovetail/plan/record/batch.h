#pragma once

#include <cstdint>

#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// Recorded step whose batch had `batch` images or sequences.
struct RecordedBatch {
  const CapturedStep& step;
  int64_t batch = 0;
};

/// Returns the step at batch size `batch`, computed from recordings at two other batch sizes. The
/// result can be planned but not run. Every size, stride, offset and number of bytes lies on the
/// line through its values in the two recordings. Both recordings must have the same operations.
/// The result is exact under two conditions:
/// - Steps of all batch sizes have these operations.
/// - No dimension grows with the square of the batch size.
///
/// The result has allocations of operations only for the tensors that they create. Scratch memory
/// of kernels is omitted: it need not be linear in the batch size, and differs on other machines.
/// Numbers that operations get as arguments are taken from `b`.
///
/// Throws UserError that names the operation if the recordings differ in their operations. Also
/// throws UserError if a value at size `batch` is not a whole number.
CapturedStep at_batch(const RecordedBatch& a, const RecordedBatch& b, int64_t batch);

}  // namespace dovetail::plan
