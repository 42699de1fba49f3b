#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail::ops {

/// Layer norm or RMS norm of the N rows (`rows`) of x, each of width C. Tensors x, y, dy and dx (N,
/// C) are contiguous, in the number format `storage`. All other tensors are float32; weight and
/// bias are (C).
struct NormProblem {
  int64_t rows, width;
  Storage storage;
  bool centered;  ///< true: layer norm; false: RMS norm, which has no mean and no bias
  const void* x;
  const float* weight;
  const float* bias;  ///< may be null
  float eps;
  /// Statistics (N) of the rows: mean, and 1 / std or 1 / rms. Forward writes and backward reads
  /// them. mean is null for RMS norm.
  float *mean, *rstd;
};

/// Writes the norm y (N, C) of x.
void norm_forward(const NormProblem& problem, void* y);

/// Computes dx (N, C), and `dweight` and `dbias` (C) in float32, from dy (N, C). dbias may be null.
/// For sums over rows, the rows are divided into parts that depend on N alone. The sums of the
/// parts are added in order.
void norm_backward(const NormProblem& problem, const void* dy, void* dx, float* dweight,
                   float* dbias);

}  // namespace dovetail::ops
