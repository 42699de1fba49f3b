#include "dovetail/moe/noisy.h"

#include <ATen/ATen.h>

#include <numbers>

#include "dovetail/base/error.h"
#include "dovetail/moe/routing.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe {

namespace {

constexpr double kLeastSquare = 1e-20;

/// Variance of x (E) divided by its squared mean.
at::Tensor squared_variation(const at::Tensor& x) {
  const at::Tensor mean = x.mean();
  return (x - mean).square().mean() / mean.square().clamp_min(kLeastSquare);
}

/// Sums the weights of each expert. A GPU sums a (tokens, experts) matrix: its `index_add` adds in
/// a varying order of threads.
at::Tensor sum_by_expert(const at::Tensor& weight, const at::Tensor& expert, int64_t experts) {
  if (weight.is_cuda())
    return at::zeros({weight.size(0), experts}, weight.options())
        .scatter_add(1, expert, weight)
        .sum(0);
  return at::zeros({experts}, weight.options())
      .index_add(0, expert.reshape({-1}), weight.reshape({-1}));
}

}  // namespace

at::Tensor importance_loss(const at::Tensor& weight, const at::Tensor& expert, int64_t experts) {
  user_check(weight.dim() == 2 && at::isFloatingType(weight.scalar_type()),
             "moe_importance_loss: weight must be floating, (tokens, k), but is {}",
             ops::describe(weight));
  user_check(expert.sizes() == weight.sizes() &&
                 at::isIntegralType(expert.scalar_type(), /*includeBool=*/false),
             "moe_importance_loss: expert_idx must hold integers shaped as weight, {}, but is {}",
             ops::describe(weight), ops::describe(expert));
  user_check(experts >= 1, "moe_importance_loss: num_experts = {} must be positive", experts);
  return squared_variation(sum_by_expert(weight, expert.to(at::kLong), experts));
}

at::Tensor smooth_load_loss(const at::Tensor& logits, const at::Tensor& noise,
                            const at::Tensor& noise_scale, int64_t k) {
  check_logits("moe_smooth_load_loss", logits);
  const int64_t experts = logits.size(1);
  user_check(k >= 1 && k <= experts,
             "moe_smooth_load_loss: k = {} must be 1 to {}, the number of experts", k, experts);
  for (const auto& [name, x] : {std::pair{"noise", noise}, {"noise_scale", noise_scale}})
    user_check(x.sizes() == logits.sizes(),
               "moe_smooth_load_loss: {} must be shaped as logits, {}, but is {}", name,
               ops::describe(logits), ops::describe(x));
  if (k == experts)
    return at::zeros({}, logits.options());  // every expert has every token: loads are equal
  const at::Tensor noisy = logits + noise * noise_scale;
  const at::Tensor largest = std::get<0>(noisy.topk(k + 1, 1));
  const at::Tensor next = largest.narrow(1, k, 1), last = largest.narrow(1, k - 1, 1);
  const at::Tensor of_others = at::where(noisy > next, next, last);
  const at::Tensor z = (logits - of_others) / noise_scale;
  return squared_variation((0.5 * (1 + at::erf(z / std::numbers::sqrt2))).sum(0));
}

}  // namespace dovetail::moe
