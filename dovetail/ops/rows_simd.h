#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail {

/// c[row[i]] += weight[i] * x[i] for the `rows` rows of x (rows, width), contiguous, of `storage`;
/// c float32, its rows `ldc` apart, those of `row` all different; `weight` null: 1.
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

/// y[i] = weight[i] * x[row[i]] (rows, width), of the `storage` of x (n, width), both contiguous;
/// `weight` null: 1. With `other` (rows, width), as y: dots[i] = <x[row[i]], other[i]>, sums in
/// float32.
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

/// What the weights of weighted rows need in backward: dweight[i] = <y[i], dy[i]>, and then both
/// rows become themselves times weight[i]. y and dy (rows, width), contiguous, of `storage`; sums
/// in float32.
struct WeighRowsProblem {
  Storage storage;
  int64_t rows, width;
  const float* weight;
  void *y, *dy;
  float* dweight;
};
void weigh_rows(const WeighRowsProblem& problem);

}  // namespace dovetail
