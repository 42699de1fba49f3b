#pragma once

#include <cstdint>

namespace dovetail {

/// A matrix in float32 with one of its strides 1.
struct MatrixView {
  const float* data;
  int64_t row_stride, column_stride;
};

/// c (m, n), rows `ldc` apart, = [c +] [bias per column +] a (m, k) @ b (k, n). `bias` may be null, and is not used
/// with `accumulate`. `row_sums` (m), null for none, becomes the sums of a's rows.
struct GemmProblem {
  int64_t m, n, k;
  MatrixView a, b;
  float* c;
  int64_t ldc;
  const float* bias;
  bool accumulate;
  float* row_sums;
};

/// Runs on parallel_workers() threads. Each element of c is one sum in the order of k, cut every `kDepth` terms: the
/// same bits for any number of threads and wherever the element lies in c.
void gemm_float32(const GemmProblem& problem);

}  // namespace dovetail
