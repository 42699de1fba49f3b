#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail {

/// A run of elements of one parameter; see adamw.h for the formula.
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
  float rest1,
      rest2;  ///< 1 - beta: from float64, since float32's 1 - 0.999f is off by 1e-5 of itself
};

/// On the calling thread.
void adamw_span(const AdamWSpan& span, const AdamWScalars& scalars);

/// A run of elements whose squares are summed.
struct SquaresPiece {
  const void* data;
  Storage storage;
  int64_t count;
};

/// Sum of squares of `count` elements in float64, on the calling thread.
double sum_of_squares_span(const void* x, Storage storage, int64_t count);

}  // namespace dovetail
