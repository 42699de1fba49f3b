#pragma once

#include <ATen/core/Tensor.h>

namespace dovetail {

/// Result of an operation on the meta device: an empty tensor of `sizes` and `dtype`,
/// differentiable in `inputs`, whose gradients are empty as well. For operations that ATen has no
/// meta kernels of in C++, such as layer_norm.
at::Tensor empty_on_meta(at::TensorList inputs, at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace dovetail
