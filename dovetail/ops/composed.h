#pragma once

#include "dovetail/ops/functions.h"

/// Operations of functions.h, composed of ATen's differentiable operators alone. They are used for
/// float16 and float64, on a GPU without our kernels, and if kernels are disabled. Tests compare
/// our kernels with them. The caller has checked shapes and dtypes.
namespace dovetail::ops::composed {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps);
at::Tensor rotate(const at::Tensor& x, int64_t position, AttentionOptions options);
/// Differentiable function with which `attention` rotates queries and keys.
using Rotate = at::Tensor (*)(const at::Tensor& x, int64_t position, AttentionOptions options);
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     AttentionOptions options, Rotate rotate_by = rotate);
at::Tensor swiglu(const at::Tensor& x);
at::Tensor gelu(const at::Tensor& x);
at::Tensor squared_relu(const at::Tensor& x);
/// Computes the loss with the logits of all N tokens, (N, vocab), in memory at once.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& targets);

}  // namespace dovetail::ops::composed
