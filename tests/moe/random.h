#pragma once

#include <ATen/core/Tensor.h>

#include "../ops/testing.h"

namespace dovetail::moe {

/// Standard normal values in float64, the same for the same seed.
inline at::Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  return testing::normal(sizes, seed, at::kDouble);
}

}  // namespace dovetail::moe
