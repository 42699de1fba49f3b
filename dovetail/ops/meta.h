#pragma once

#include <ATen/core/Tensor.h>

namespace dovetail::ops {

/// Returns the result of an operation on the meta device: an empty tensor of `sizes` and `dtype`.
/// It is differentiable in `inputs`, with empty gradients. For operations without a meta kernel of
/// ATen in C++, for example layer_norm.
at::Tensor empty_on_meta(at::TensorList inputs, at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace dovetail::ops
