#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

/// Differentiable operations of a decoder-only transformer. For float32 and bfloat16, most are our
/// own kernels, with statistics, softmax and accumulation in FP32. On a GPU, this needs a build
/// with our CUDA library (cuda_kernels.h). In all other cases, the operations are composed of
/// ATen's operators. They are also registered as `torch.ops.dovetail.<name>`. Exceptions are
/// `rotate`, `rms_norm_of_sum`, `layer_norm_of_sum` and `attention` of qkv. All operations throw a
/// UserError that names wrong shapes or dtypes. On the meta device, results and gradients are
/// tensors without memory.
namespace dovetail::ops {

/// Returns y = x @ weight^T + bias, y (..., out). Shapes: x (..., in), weight (out, in), bias (out)
/// or undefined. All have one dtype.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

/// Returns x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019).
/// weight is (width), any float dtype.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// Returns the layer normalisation over the last dimension (Ba et al. 2016). weight and bias are
/// (width); bias may be undefined.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps);

/// Residual sum (`sum`) and its norm (`normal`).
struct NormedSum {
  at::Tensor sum, normal;
};
/// Returns sum = x + branch and normal = norm(sum). x and branch have one shape and dtype; an
/// undefined branch counts as zero. On a GPU, one kernel computes both results, and one kernel adds
/// up the gradients of x from both.
NormedSum rms_norm_of_sum(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                          double eps);
NormedSum layer_norm_of_sum(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                            const at::Tensor& bias, double eps);

/// Causal scaled-dot-product attention with rotary positions (Su et al. 2021) on queries and keys,
/// in one operation.
///
/// Dimensions: B batch, T queries, S keys, H query heads, Hkv key-value heads, D head size. Shapes:
/// q (B, T, H, D), k and v (B, S, Hkv, D), H a multiple of Hkv; returns (B, T, H, D). If S > T, the
/// queries are the last T positions (decoding with a cache). The first S - T keys must then already
/// be rotated (see `rotate`). Rotary positions apply to the first `rotary_dim` elements of each
/// head (even, <= D; 0: none). They rotate pairs (i, i + rotary_dim / 2), as Llama and GPT-NeoX do,
/// with base `theta`.
struct AttentionOptions {
  int64_t rotary_dim = 0;
  double theta = 10000.0;
};
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     AttentionOptions options = {});
/// Computes attention from the result of one joint projection, qkv (B, T, (heads + 2 kv_heads) *
/// D): queries, then keys, then values. The gradient of qkv is written as one tensor. Gradients of
/// separate q, k and v would have to be concatenated first.
at::Tensor attention(const at::Tensor& qkv, int64_t heads, int64_t kv_heads,
                     AttentionOptions options = {});

/// Returns x (B, T, H, D), rotated by the rotary positions `position`, `position` + 1 and so on.
/// Not differentiable; used in decoding.
at::Tensor rotate(const at::Tensor& x, int64_t position, AttentionOptions options);

/// Returns SwiGLU (Shazeer 2020): silu(gate) * up, (..., width). x is (..., 2 * width) and holds
/// gate, then up.
at::Tensor swiglu(const at::Tensor& x);
/// Returns GELU in its tanh form (Hendrycks and Gimpel 2016), as in GPT-2.
at::Tensor gelu(const at::Tensor& x);
/// Returns max(x, 0)^2 (So et al. 2021), as in Nemotron.
at::Tensor squared_relu(const at::Tensor& x);

/// Returns the sum over tokens of -log softmax(x @ weight^T)[target]. Tokens are processed in
/// chunks, so the logits of all tokens never exist at once. The gradient of a chunk is computed
/// together with its loss. Shapes: x (N, width), weight (vocab, width), targets (N) int64; targets
/// of -100 are ignored. The result is a scalar in float32, or in float64 for float64 input.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& targets);

/// Returns the rows of `weight` (vocab, width) that `ids` (...) int64 names: (..., width). The
/// gradient is accumulated in the order of `ids`, so its bits are the same for any number of
/// threads.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);

}  // namespace dovetail::ops
