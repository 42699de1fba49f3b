#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dovetail::ops {

/// Numbers that an AdamW step (Loshchilov and Hutter 2019) uses for all its tensors. A step updates
/// many tensors in one pass over memory. In the formula, p is the parameter, b1 and b2 are `beta1`
/// and `beta2`, and t is `step`:
///
///   g = grad * grad_scale;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
///   p = p - lr * weight_decay * p - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double grad_scale = 1.0;  ///< factor of all gradients: clipping, division by the token count
  int64_t step = 1;         ///< 1-based step number t
};

/// One parameter with its gradient and optimizer state.
struct AdamWTensor {
  at::Tensor parameter;  ///< float32 or float64 master weight, contiguous
  at::Tensor gradient;   ///< same shape; float32, float64 or bfloat16
  at::Tensor m, v;       ///< same dtype as parameter
  /// Bfloat16 copy of the parameter for the forward pass, or undefined. It receives the updated
  /// parameter, rounded.
  at::Tensor compute_copy;
  double weight_decay = 0.0;
};

/// Updates `parameter`, `m`, `v` and `compute_copy` of all tensors in place.
void adamw_step(const std::vector<AdamWTensor>& tensors, const AdamWOptions& options);

/// Cuts each tensor into pieces of consecutive elements. Returns the sum of squares of each piece,
/// float64, in the order of the tensors: (number of pieces). Adding these sums in order gives
/// `sum_of_squares`, even if several calls each get a part of the tensors. NaN and infinity are
/// propagated. The result is on the GPU if all tensors are on it, else on the CPU. The call does
/// not wait for the GPU.
at::Tensor squares_of_pieces(const std::vector<at::Tensor>& tensors);
/// Returns the sum of squares of all elements of all tensors in float64, added in a fixed order.
double sum_of_squares(const std::vector<at::Tensor>& tensors);

}  // namespace dovetail::ops
