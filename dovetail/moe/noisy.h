#pragma once

#include <ATen/core/Tensor.h>

/// Losses that balance the load in noisy top-k gating (Shazeer et al. 2017). Both are
/// differentiable. T tokens choose k of E experts each.
namespace dovetail::moe {

/// Computes the squared coefficient of variation (variance / mean^2) of the experts' importance. An
/// expert's importance is the sum of the weights of its tokens. weight: (T, k); expert: (T, k)
/// integers. Throws UserError naming an argument that does not fit.
at::Tensor importance_loss(const at::Tensor& weight, const at::Tensor& expert, int64_t experts);

/// Computes the squared coefficient of variation of the experts' expected loads. logits, noise,
/// noise_scale: (T, E). The router chose experts by the noisy logits: logits + noise * noise_scale,
/// element by element.
///
/// For a token and an expert, let m be the k-th largest noisy logit of the other experts. If this
/// expert's own noise is drawn again, its noisy logit exceeds m with probability P = Phi((logit -
/// m) / noise_scale). The expert is then among the token's k experts. Phi is the standard normal
/// distribution function. The expected load of an expert is the sum of P over the tokens.
at::Tensor smooth_load_loss(const at::Tensor& logits, const at::Tensor& noise,
                            const at::Tensor& noise_scale, int64_t k);

}  // namespace dovetail::moe
