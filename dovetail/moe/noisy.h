#pragma once

#include <ATen/core/Tensor.h>

/// Losses of noisy top-k gating (Shazeer et al. 2017). Both are differentiable.
namespace dovetail::moe {

/// Squared coefficient of variation of the experts' importance. An expert's importance is the sum
/// of its tokens' weights. weight: (T, k); expert: (T, k) integers. Throws UserError naming an
/// argument that does not fit.
at::Tensor importance_loss(const at::Tensor& weight, const at::Tensor& expert, int64_t experts);

/// Squared coefficient of variation of the experts' expected loads. An expert's expected load sums
/// a probability over the tokens. Here only this expert's noise is drawn again, and it must be
/// among the token's k experts. The probability is Phi((logit - m) / noise_scale). Phi is the
/// normal distribution function; m is the k-th largest noisy logit of the other experts. logits,
/// noise, noise_scale: (T, E). The gate chose by logits + noise * noise_scale.
at::Tensor smooth_load_loss(const at::Tensor& logits, const at::Tensor& noise,
                            const at::Tensor& noise_scale, int64_t k);

}  // namespace dovetail::moe
