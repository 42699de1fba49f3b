#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dovetail::models {

/// Loss of a batch or a part of it: the sum of the targets' losses, and the number of targets. Both
/// can be added over micro-batches and ranks, unlike a mean.
struct LossSum {
  at::Tensor sum;      ///< scalar, float32 or float64, with gradient: sum of the targets' losses
  int64_t weight = 0;  ///< number of targets: tokens, images or pixels
  /// Scalar: loss of the model's mixture-of-experts routers, times the number of targets. Undefined
  /// if the model has no router loss.
  at::Tensor router;

  /// Returns the sum from which backward starts: `sum` plus `router`.
  at::Tensor trained() const { return router.defined() ? sum + router : sum; }
};

}  // namespace dovetail::models
