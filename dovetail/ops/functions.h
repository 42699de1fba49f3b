#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

/// The differentiable operations of a decoder-only transformer. On CPU in float32 and bfloat16
/// these are our fused kernels (statistics, softmax and accumulation in FP32); on other devices
/// they are composed of ATen's operators. Each is also `torch.ops.dovetail.<name>`. All throw
/// UserError on wrong shapes or dtypes, naming them. On the meta device they give shapes, without
/// gradients.
namespace dovetail {

/// y = x @ weight^T + bias.  x (..., in), weight (out, in), bias (out) or undefined; same dtype. y
/// (..., out).
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

/// x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019). weight
/// (width), any float dtype.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// Layer normalisation over the last dimension (Ba et al. 2016); weight and bias (width); bias may
/// be undefined.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps);

/// A residual sum and its norm.
struct NormedSum {
  at::Tensor sum, normal;
};
/// sum = x + branch, normal = the norm of sum. x and branch are tensors of one shape and dtype; an
/// undefined branch counts as zero. On a GPU one kernel makes both, and one joins their gradients.
NormedSum rms_norm_of_sum(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                          double eps);
NormedSum layer_norm_of_sum(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                            const at::Tensor& bias, double eps);

/// Causal scaled-dot-product attention with rotary positions (Su et al. 2021) on queries and keys,
/// in one operation.
///
/// q (B, T, H, D), k and v (B, S, Hkv, D), H a multiple of Hkv; returns (B, T, H, D). With S > T
/// the queries are the last T positions (decoding with a cache: k is then expected already rotated
/// up to S - T, see `rotate`). `rotary_dim` (even, <= D; 0: none) leading elements of each head are
/// rotated in pairs (i, i + rotary_dim / 2), as Llama and GPT-NeoX do, with base `theta`.
struct AttentionOptions {
  int64_t rotary_dim = 0;
  double theta = 10000.0;
};
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     AttentionOptions options = {});
/// The same on what one product made: qkv (B, T, (heads + 2 kv_heads) * D), queries, then keys,
/// then values. Its gradient is written as one tensor; three would have to be joined first.
at::Tensor attention(const at::Tensor& qkv, int64_t heads, int64_t kv_heads,
                     AttentionOptions options = {});

/// Rotary positions alone: x (B, T, H, D) whose first position is `position`; not differentiable
/// (used in decoding).
at::Tensor rotate(const at::Tensor& x, int64_t position, AttentionOptions options);

/// SwiGLU (Shazeer 2020): x (..., 2 * width) holds gate then up; silu(gate) * up, (..., width).
at::Tensor swiglu(const at::Tensor& x);
/// GELU, tanh form (Hendrycks and Gimpel 2016), as GPT-2.
at::Tensor gelu(const at::Tensor& x);
/// max(x, 0)^2 (So et al. 2021), as Nemotron.
at::Tensor squared_relu(const at::Tensor& x);

/// Sum over tokens of -log softmax(x @ weight^T)[target], without ever holding all logits: rows go
/// through in chunks, forward and gradient in one pass. x (N, width), weight (vocab, width),
/// targets (N) int64; targets of -100 are left out. Returns a scalar, float32 (float64 for float64
/// input).
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& targets);

/// Rows of `weight` (vocab, width) for ids (...) int64: (..., width). Its gradient is accumulated
/// in index order, so it is the same bits for any number of threads.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);

}  // namespace dovetail
