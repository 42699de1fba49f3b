#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail::ops {

/// Consecutive elements of one parameter, with their gradient and state; adamw.h has the formula.
struct AdamWSpan {
  float* parameter;
  const void* gradient;
  Storage gradient_storage;
  float *m, *v;
  uint16_t* compute_copy;  ///< bfloat16 copy of the parameter for the forward pass; may be null
  int64_t count;
  float decay;  ///< 1 - lr * weight_decay
};

/// Numbers of a step that are the same for all spans, derived from AdamWOptions in float64.
struct AdamWScalars {
  float beta1, beta2, eps, grad_scale;
  float step_size;           ///< lr / (1 - beta1^t)
  float inverse_correction;  ///< 1 / sqrt(1 - beta2^t)
  /// 1 - beta1 and 1 - beta2. They are computed in float64, because 1 - 0.999f has a relative error
  /// of 1e-5 in float32.
  float rest1, rest2;
};

/// Updates the elements of a span on the calling thread.
void adamw_span(const AdamWSpan& span, const AdamWScalars& scalars);

/// Consecutive elements of a tensor whose squares are summed.
struct SquaresPiece {
  const void* data;
  Storage storage;
  int64_t count;
};

/// Returns the sum of the squares of `count` elements, added in float64. Runs on the calling
/// thread.
double sum_of_squares_span(const void* x, Storage storage, int64_t count);

}  // namespace dovetail::ops
