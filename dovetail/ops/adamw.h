#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dovetail {

/// One AdamW step (Loshchilov and Hutter 2019) over many tensors in one pass over memory:
///   g = grad * grad_scale;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
///   p = p - lr * weight_decay * p - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double grad_scale = 1.0;  ///< folds in clipping and the division by the token count
  int64_t step = 1;         ///< t, counted from 1
};

struct AdamWTensor {
  at::Tensor parameter;     ///< float32 or float64 master weight, contiguous
  at::Tensor gradient;      ///< same shape; float32, float64 or bfloat16
  at::Tensor m, v;          ///< same dtype as parameter
  at::Tensor compute_copy;  ///< undefined, or the bfloat16 weight used in forward: written with the
                            ///< rounded result
  double weight_decay = 0.0;
};

void adamw_step(const std::vector<AdamWTensor>& tensors, const AdamWOptions& options);

/// Sums of squares of the pieces of all tensors in order, float64 (pieces): added up in their order
/// they are `sum_of_squares`, however the tensors are distributed over calls. NaN or infinity comes
/// through. On the GPU if all tensors are, without waiting for it; else on the CPU.
at::Tensor squares_of_pieces(const std::vector<at::Tensor>& tensors);
/// Sum of squares of all elements in float64, in a fixed order.
double sum_of_squares(const std::vector<at::Tensor>& tensors);

}  // namespace dovetail
