#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail::ops {

/// Consecutive elements of one parameter; adamw.h has the formula.
struct AdamWSpan {
  float* parameter;
  const void* gradient;
  Storage gradient_storage;
  float *m, *v;
  uint16_t* compute_copy;  ///< bfloat16 bits; may be null
  int64_t count;
  float decay;  ///< 1 - lr * weight_decay
};

struct AdamWScalars {
  float beta1, beta2, eps, grad_scale;
  float step_size;           ///< lr / (1 - beta1^t)
  float inverse_correction;  ///< 1 / sqrt(1 - beta2^t)
  /// 1 - beta1 and 1 - beta2, computed in float64. In float32, 1 - 0.999f has a relative error of
  /// 1e-5.
  float rest1, rest2;
};

/// Updates the elements of a span on the calling thread.
void adamw_span(const AdamWSpan& span, const AdamWScalars& scalars);

/// Consecutive elements whose squares are summed.
struct SquaresPiece {
  const void* data;
  Storage storage;
  int64_t count;
};

/// Returns the sum of squares of `count` elements in float64. Runs on the calling thread.
double sum_of_squares_span(const void* x, Storage storage, int64_t count);

}  // namespace dovetail::ops
