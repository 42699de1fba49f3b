#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dovetail::models {

/// Returns random normal numbers with mean 0 and standard deviation `std`, float32 on the CPU.
/// Element i in row-major order depends on (key, i) alone.
at::Tensor normal_values(at::IntArrayRef shape, double std, uint64_t key);

}  // namespace dovetail::models
