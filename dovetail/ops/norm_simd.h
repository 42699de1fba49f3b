#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail {

/// Legend: N rows, C width. x, y, dy, dx (N, C) contiguous in `storage`; weight, bias (C) and the
/// rest float32.
struct NormProblem {
  int64_t rows, width;
  Storage storage;
  bool centered;  ///< layer norm; else RMS norm, which has no mean and no bias
  const void* x;
  const float* weight;
  const float* bias;  ///< may be null
  float eps;
  float *mean, *rstd;  ///< (N): written by forward, read by backward; mean is null for RMS norm
};

void norm_forward(const NormProblem& problem, void* y);

/// dx (N, C); `dweight` and `dbias` (C) float32, dbias may be null. Rows are summed in parts that
/// depend on N alone, the parts in order.
void norm_backward(const NormProblem& problem, const void* dy, void* dx, float* dweight,
                   float* dbias);

}  // namespace dovetail
