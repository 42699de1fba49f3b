#pragma once

#include <ATen/core/Tensor.h>

#include "../ops/testing.h"

namespace dovetail::moe {

/// Standard normal float64 values, reproducible from `seed`.
inline at::Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  return testing::normal(sizes, seed, at::kDouble);
}

}  // namespace dovetail::moe
