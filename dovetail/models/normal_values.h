#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dovetail {

/// Normal numbers of mean 0, float32 on the CPU: element i a function of (key, i) alone.
at::Tensor normal_values(at::IntArrayRef shape, double std, uint64_t key);

}  // namespace dovetail
