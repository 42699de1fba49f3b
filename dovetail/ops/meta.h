#pragma once

#include <ATen/core/Tensor.h>

namespace dovetail::ops {

/// Returns the result of an operation on the meta device: a tensor of `sizes` and `dtype`, without
/// memory. It is differentiable with respect to `inputs`, whose gradients have no memory either.
/// Used for operations for which ATen has no meta kernel in C++, for example layer_norm.
at::Tensor empty_on_meta(at::TensorList inputs, at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace dovetail::ops
