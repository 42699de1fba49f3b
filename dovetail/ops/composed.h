#pragma once

#include "dovetail/ops/functions.h"

/// The operations of functions.h written with ATen's differentiable operators alone: what float64,
/// the meta device, CUDA and switched-off kernels use, and what the tests hold our kernels against.
/// Shapes and dtypes have been checked by the caller.
namespace dovetail::composed {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps);
at::Tensor rotate(const at::Tensor& x, int64_t position, AttentionOptions options);
/// How `attention` rotates; a differentiable function.
using Rotate = at::Tensor (*)(const at::Tensor& x, int64_t position, AttentionOptions options);
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     AttentionOptions options, Rotate rotate_by = rotate);
at::Tensor swiglu(const at::Tensor& x);
at::Tensor gelu(const at::Tensor& x);
at::Tensor squared_relu(const at::Tensor& x);
/// Holds all logits at once.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& targets);

}  // namespace dovetail::composed
