#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dovetail::models {

/// Loss as a sum over targets and the number of targets, never as a mean. Sums and numbers can
/// therefore be added over micro-batches and ranks.
struct LossSum {
  at::Tensor sum;      ///< scalar, float32 or float64, with gradient: sum of the targets' losses
  int64_t weight = 0;  ///< number of targets: tokens, images or pixels
  /// Scalar: loss of the model's mixture-of-experts routers, times the number of targets. Undefined
  /// if there is no such loss.
  at::Tensor router;

  /// Returns the sum from which backward starts: `sum` plus `router`.
  at::Tensor trained() const { return router.defined() ? sum + router : sum; }
};

}  // namespace dovetail::models
