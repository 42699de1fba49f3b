#pragma once

#include <ATen/core/Tensor.h>

/// The losses of noisy top-k gating (Shazeer et al. 2017); differentiable.
namespace dovetail::moe {

/// The squared coefficient of variation of how much weight each expert has, the sum of its tokens'
/// weights. weight (T, k), expert (T, k) integers. Throws UserError naming an argument that does
/// not fit.
at::Tensor importance_loss(const at::Tensor& weight, const at::Tensor& expert, int64_t experts);

/// The same of each expert's expected load, the sum over tokens of the probability that with its
/// noise drawn again it is among the token's k: of the normal distribution at (logit - the k-th
/// largest of the other experts' noisy logits) / noise_scale. logits, noise, noise_scale (T, E):
/// the gate chose by logits + noise * noise_scale.
at::Tensor smooth_load_loss(const at::Tensor& logits, const at::Tensor& noise,
                            const at::Tensor& noise_scale, int64_t k);

}  // namespace dovetail::moe
