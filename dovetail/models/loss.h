#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dovetail {

/// A loss as a sum and the number of targets behind it, never a mean: sums and weights add over
/// micro-batches and ranks.
struct LossSum {
  at::Tensor sum;      ///< scalar, float32 or float64, with gradient
  int64_t weight = 0;  ///< tokens, images or pixels
  at::Tensor router;   ///< the routers' losses times the weight; undefined without experts

  at::Tensor trained() const {
    return router.defined() ? sum + router : sum;
  }  ///< where backward begins
};

}  // namespace dovetail
