#include "dovetail/moe/expert_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "dovetail/base/error.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe {

namespace {

constexpr int64_t kAlignment = 16;  // bytes, of operands of `torch._grouped_mm`

void check_expert(const at::Tensor& x, const ExpertWeights& experts, size_t e) {
  const at::Tensor &up = experts.up[e], &down = experts.down[e];
  const int64_t width = down.dim() == 2 ? down.size(1) : -1;
  user_check(down.dim() == 2 && down.size(0) == x.size(1),
             "experts: down of expert {} must be [{}, width], but is {}", e, x.size(1),
             ops::describe(down));
  user_check(up.dim() == 2 && up.size(0) == mx::up_width(experts.activation, width) &&
                 up.size(1) == x.size(1),
             "experts: up of expert {} must be [{}, {}], but is {}", e,
             mx::up_width(experts.activation, width), x.size(1), ops::describe(up));
  user_check(
      up.scalar_type() == x.scalar_type() && down.scalar_type() == x.scalar_type(),
      "experts: x and the experts must share one dtype: x is {}, up of expert {} is {}, down {}",
      ops::describe(x), e, ops::describe(up), ops::describe(down));
}

/// Returns true if `tensors` lie one after another in one storage.
bool are_neighbours(at::TensorList tensors) {
  const at::Tensor& first = tensors[0];
  for (size_t e = 0; e < tensors.size(); ++e) {
    const at::Tensor& tensor = tensors[e];
    if (!tensor.is_contiguous() || tensor.sizes() != first.sizes() ||
        tensor.scalar_type() != first.scalar_type() || !tensor.is_alias_of(first) ||
        tensor.storage_offset() != first.storage_offset() + static_cast<int64_t>(e) * first.numel())
      return false;
  }
  return true;
}

}  // namespace

void check_experts(const at::Tensor& x, const at::Tensor& weight, const ExpertWeights& experts,
                   int64_t count) {
  user_check(x.dim() == 2 && weight.dim() == 2 && weight.size(0) == x.size(0),
             "experts: x must be (T, C) and weight (T, k): x is {}, weight is {}", ops::describe(x),
             ops::describe(weight));
  const auto sums = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  user_check(weight.scalar_type() == sums, "experts: weight must be {}: x is {}, weight is {}",
             at::toString(sums), ops::describe(x), ops::describe(weight));
  const size_t experts_given = experts.experts();
  user_check(static_cast<int64_t>(experts_given) == count && experts.down.size() == experts_given,
             "experts: {} rows of choices for {} up and {} down matrices", count, experts_given,
             experts.down.size());
  for (size_t e = 0; e < experts_given; ++e) check_expert(x, experts, e);
  const bool bias = !experts.up_bias.empty();
  user_check(experts.up_bias.size() == (bias ? experts_given : 0) &&
                 experts.down_bias.size() == experts.up_bias.size(),
             "experts: {} experts have {} biases of up and {} of down", experts_given,
             experts.up_bias.size(), experts.down_bias.size());
}

at::Tensor stacked(at::TensorList tensors) {
  const at::Tensor& first = tensors[0];
  const bool aligned = first.storage_offset() * first.element_size() % kAlignment == 0;
  if (!aligned || !are_neighbours(tensors)) return at::stack(tensors);
  std::vector<int64_t> sizes = first.sizes().vec(), strides = first.strides().vec();
  sizes.insert(sizes.begin(), static_cast<int64_t>(tensors.size()));
  strides.insert(strides.begin(), first.numel());
  return first.as_strided(sizes, strides);
}

void share_storage(at::TensorList tensors) {
  if (are_neighbours(tensors)) return;
  const at::NoGradGuard no_grad;
  const at::Tensor all = at::stack(tensors);
  for (size_t e = 0; e < tensors.size(); ++e)
    tensors[e].set_data(all.select(0, static_cast<int64_t>(e)));
}

}  // namespace dovetail::moe
