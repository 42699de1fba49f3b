#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail::ops {

/// Scatter-add of rows: c[row[i]] += weight[i] * x[i] for all rows of x. The matrix x is (rows,
/// width), contiguous, in the number format `storage`. c is float32, and its rows are `ldc`
/// elements apart. The numbers in `row` are all different. If `weight` is null, weights are 1.
struct AddRowsProblem {
  Storage storage;
  int64_t rows, width;
  const void* x;
  const int32_t* row;
  const float* weight;
  float* c;
  int64_t ldc;
};
void add_rows(const AddRowsProblem& problem);

/// Gather of rows: y[i] = weight[i] * x[row[i]]. Both x (n, width) and y (rows, width) are
/// contiguous in `storage`. If `weight` is null, weights are 1. If `other` is not null, dot
/// products are computed, too: dots[i] = <x[row[i]], other[i]>, with float32 sums. `other` has the
/// shape and storage of y.
struct GatherRowsProblem {
  Storage storage;
  int64_t rows, width;
  const void* x;
  const int32_t* row;
  const float* weight;
  void* y;
  const void* other;
  float* dots;
};
void gather_rows(const GatherRowsProblem& problem);

/// Gradient of the weights by which rows are multiplied: dweight[i] = <y[i], dy[i]>, with float32
/// sums. Then y[i] and dy[i] are multiplied by weight[i] in place. y and dy are (rows, width),
/// contiguous in `storage`.
struct WeighRowsProblem {
  Storage storage;
  int64_t rows, width;
  const float* weight;
  void *y, *dy;
  float* dweight;
};
void weigh_rows(const WeighRowsProblem& problem);

}  // namespace dovetail::ops
