#include "dovetail/ops/composed.h"

#include <ATen/ATen.h>

#include <cmath>

namespace dovetail::ops::composed {

namespace {

/// Returns the dtype of statistics: float32 for bfloat16 and float16, else the dtype of x.
at::ScalarType statistics_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf ? at::kFloat
                                                                          : x.scalar_type();
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(statistics_dtype(x));
  const at::Tensor scale = (wide * wide).mean(-1, /*keepdim=*/true).add(eps).rsqrt();
  return (wide * scale * weight.to(wide.scalar_type())).to(x.scalar_type());
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps) {
  const auto dtype = statistics_dtype(x);
  const at::Tensor wide_bias = bias.defined() ? bias.to(dtype) : at::Tensor();
  return at::layer_norm(x.to(dtype), {x.size(-1)}, weight.to(dtype), wide_bias, eps)
      .to(x.scalar_type());
}

at::Tensor rotate(const at::Tensor& x, int64_t position, AttentionOptions options) {
  if (options.rotary_dim == 0) return x;
  const int64_t half = options.rotary_dim / 2, length = x.size(1);
  const auto wide = x.options().dtype(at::kDouble);
  // Angles are float64: float32 loses half of their digits at positions of some thousands.
  const at::Tensor frequency =
      at::exp(at::arange(half, wide) *
              (-2.0 * std::log(options.theta) / static_cast<double>(options.rotary_dim)));
  const at::Tensor angle = at::arange(position, position + length, wide).unsqueeze(1) * frequency;
  const auto dtype = statistics_dtype(x);
  const at::Tensor cosine = angle.cos().to(dtype).unsqueeze(1),
                   sine = angle.sin().to(dtype).unsqueeze(1);
  const at::Tensor first = x.narrow(-1, 0, half).to(dtype),
                   second = x.narrow(-1, half, half).to(dtype);
  const at::Tensor rotated =
      at::cat({first * cosine - second * sine, second * cosine + first * sine}, -1)
          .to(x.scalar_type());
  if (options.rotary_dim == x.size(-1)) return rotated;
  return at::cat({rotated, x.narrow(-1, options.rotary_dim, x.size(-1) - options.rotary_dim)}, -1);
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     AttentionOptions options, Rotate rotate_by) {
  const int64_t queries = q.size(1), keys = k.size(1);
  const at::Tensor rotated_q = rotate_by(q, keys - queries, options);
  // With a cache, earlier keys are already rotated.
  const at::Tensor rotated_k =
      keys == queries || options.rotary_dim == 0
          ? rotate_by(k, 0, options)
          : at::cat({k.narrow(1, 0, keys - queries),
                     rotate_by(k.narrow(1, keys - queries, queries), keys - queries, options)},
                    1);
  if (q.numel() == 0) return at::empty_like(q);
  std::optional<at::Tensor> mask;
  // A single query sees all keys. A mask would keep ATen from using flash attention.
  if (keys != queries && queries > 1)
    mask = at::ones({queries, keys}, q.options().dtype(at::kBool)).tril(keys - queries);
  return at::scaled_dot_product_attention(
             rotated_q.transpose(1, 2), rotated_k.transpose(1, 2), v.transpose(1, 2), mask,
             /*dropout_p=*/0.0, /*is_causal=*/keys == queries, /*scale=*/std::nullopt,
             /*enable_gqa=*/q.size(2) != k.size(2))
      .transpose(1, 2);
}

at::Tensor swiglu(const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

at::Tensor gelu(const at::Tensor& x) { return at::gelu(x, "tanh"); }

at::Tensor squared_relu(const at::Tensor& x) { return at::relu(x).square(); }

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& targets) {
  const auto dtype = statistics_dtype(x);
  return at::cross_entropy_loss(at::linear(x, weight).to(dtype), targets, {}, at::Reduction::Sum,
                                /*ignore_index=*/-100);
}

}  // namespace dovetail::ops::composed
