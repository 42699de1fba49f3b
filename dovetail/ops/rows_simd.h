#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail {

/// c[row[i]] += weight[i] * x[i] for the `rows` rows of x (rows, width), contiguous, of `storage`; c float32, its rows
/// `ldc` apart, those of `row` all different; `weight` null: 1.
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

/// What the weights of weighted rows need in backward: dweight[i] = <y[i], dy[i]>, and then both rows become themselves
/// times weight[i]. y and dy (rows, width), contiguous, of `storage`; sums in float32.
struct WeighRowsProblem {
  Storage storage;
  int64_t rows, width;
  const float* weight;
  void *y, *dy;
  float* dweight;
};
void weigh_rows(const WeighRowsProblem& problem);

}  // namespace dovetail
