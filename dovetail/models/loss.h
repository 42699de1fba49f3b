#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dovetail::models {

/// Loss as a sum and the number of its targets, never as a mean. Sums and weights can therefore be
/// added over micro-batches and ranks.
struct LossSum {
  at::Tensor sum;      ///< scalar, float32 or float64, with gradient
  int64_t weight = 0;  ///< number of targets: tokens, images or pixels
  at::Tensor router;   ///< losses of the routers times the weight; undefined without experts

  /// Returns the loss from which backward starts.
  at::Tensor trained() const { return router.defined() ? sum + router : sum; }
};

}  // namespace dovetail::models
