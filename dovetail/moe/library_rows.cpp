#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

#include "dovetail/base/error.h"
#include "dovetail/base/library.h"
#include "dovetail/base/once_differentiable.h"
#include "dovetail/base/traced.h"
#include "dovetail/moe/dispatch.h"
#include "dovetail/moe/grouped_linear.h"
#include "dovetail/moe/library_choices.h"
#include "dovetail/moe/library_operator.h"
#include "dovetail/moe/remedies.h"
#include "dovetail/ops/simd_level.h"

/// Registers torch.ops.dovetail.moe_dispatch, moe_combine and grouped_linear. Traced tensors
/// (base/traced.h) and the meta device see two plain operators of each. Their shapes and autograd
/// are in python/dovetail/moe/_operators.py.
namespace dovetail::moe {

namespace {

using Tensors2 = std::tuple<at::Tensor, at::Tensor>;
using Tensors3 = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

bool has_no_memory(const at::Tensor& x) { return is_traced(x) || x.is_meta(); }

at::Tensor or_empty(const at::Tensor& gradient, const at::Tensor& like) {
  return gradient.defined() ? gradient : at::empty({0}, like.options());
}

Tensors2 dispatched(const at::Tensor& x, const at::Tensor& expert, const at::Tensor& slot,
                    int64_t experts) {
  const Dispatch to = checked_dispatch(expert, slot, experts);
  at::Tensor count = at::empty({experts}, at::kLong);
  for (int64_t e = 0; e < experts; ++e) count.mutable_data_ptr<int64_t>()[e] = to.rows().count(e);
  return {dispatch_rows(x, to), count};
}

at::Tensor combined(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& expert,
                    const at::Tensor& slot, int64_t experts) {
  user_check(weight.sizes() == expert.sizes(),
             "moe_combine: weight must be as expert_idx, {}, but is {}", ops::describe(expert),
             ops::describe(weight));
  return combine_rows(rows, weight, checked_dispatch(expert, slot, experts));
}

// Operators that tracers see.

Tensors2 dispatch_forward(const at::Tensor& x, const at::Tensor& expert, const at::Tensor& slot,
                          int64_t experts) {
  const at::NoGradGuard no_grad;
  return dispatched(x, expert, slot, experts);
}

at::Tensor dispatch_backward(const at::Tensor& drows, const at::Tensor& expert,
                             const at::Tensor& slot, int64_t experts) {
  const at::NoGradGuard no_grad;
  return sum_rows(drows, checked_dispatch(expert, slot, experts), expert.size(0))
      .to(drows.scalar_type());
}

at::Tensor combine_forward(const at::Tensor& rows, const at::Tensor& weight,
                           const at::Tensor& expert, const at::Tensor& slot, int64_t experts) {
  const at::NoGradGuard no_grad;
  return combined(rows, weight, expert, slot, experts);
}

Tensors2 combine_backward(const at::Tensor& dy, const at::Tensor& rows, const at::Tensor& weight,
                          const at::Tensor& expert, const at::Tensor& slot, int64_t experts) {
  const Recording recording;
  const at::Tensor of_rows = rows.detach().requires_grad_(),
                   of_weight = weight.detach().requires_grad_();
  const auto gradients = torch::autograd::grad(
      {combined(of_rows, of_weight, expert, slot, experts)}, {of_rows, of_weight}, {dy});
  return {gradients[0].detach(), gradients[1].detach()};
}

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& count,
                          const std::optional<at::Tensor>& bias) {
  const at::NoGradGuard no_grad;
  return grouped_linear(x, weight, count, bias.value_or(at::Tensor()));
}

Tensors3 linear_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& count, std::array<bool, 3> wanted) {
  const at::NoGradGuard no_grad;
  const auto counts = checked_counts(x, weight, count, {});
  user_check(dy.dim() == 2 && dy.size(0) == x.size(0) && dy.size(1) == weight.size(1) &&
                 dy.scalar_type() == x.scalar_type() && dy.device() == x.device(),
             "grouped_linear_backward: dy must be [{}, {}] of x's dtype and device, but is {}",
             x.size(0), weight.size(1), ops::describe(dy));
  const auto made = grouped_linear_gradients(
      dy, x.contiguous(), weight, counts, {.x = wanted[0], .weight = wanted[1], .bias = wanted[2]});
  return {or_empty(made[0], x), or_empty(wanted[1] ? made[1] : at::Tensor(), x),
          or_empty(made[2], x)};
}

// Operators that a user calls.

Tensors2 library_dispatch(const at::Tensor& x, const at::Tensor& expert, const at::Tensor& slot,
                          int64_t experts) {
  if (has_no_memory(x)) {
    static auto op = find_operator("dovetail::moe_dispatch_forward", &dispatch_forward);
    return op.call(x, expert, slot, experts);
  }
  constexpr std::string_view kName = "moe_dispatch";
  return dispatched(readable(kName, x), readable(kName, expert), readable(kName, slot), experts);
}

at::Tensor library_combine(const at::Tensor& rows, const at::Tensor& weight,
                           const at::Tensor& expert, const at::Tensor& slot, int64_t experts) {
  if (has_no_memory(rows)) {
    static auto op = find_operator("dovetail::moe_combine_forward", &combine_forward);
    return op.call(rows, weight, expert, slot, experts);
  }
  constexpr std::string_view kName = "moe_combine";
  return combined(readable(kName, rows), readable(kName, weight), readable(kName, expert),
                  readable(kName, slot), experts);
}

at::Tensor library_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& count,
                          const std::optional<at::Tensor>& bias) {
  if (has_no_memory(x)) {
    static auto op = find_operator("dovetail::grouped_linear_forward", &linear_forward);
    return op.call(x, weight, count, bias);
  }
  constexpr std::string_view kName = "grouped_linear";
  return grouped_linear(readable(kName, x), readable(kName, weight), readable(kName, count),
                        readable(kName, bias).value_or(at::Tensor()));
}

/// The products are in autocast's dtype, as the ones of torch.nn.functional.linear.
template <c10::DeviceType kDevice>
at::Tensor autocast_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& count,
                           const std::optional<at::Tensor>& bias) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(kDevice);
  const auto cast = [dtype](const auto& tensor) {
    return at::autocast::cached_cast(dtype, tensor, kDevice);
  };
  return library_linear(cast(x), cast(weight), count, cast(bias));
}

}  // namespace

}  // namespace dovetail::moe

// words: off
TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  m.def(
      "moe_dispatch(Tensor x, Tensor expert_idx, Tensor slot, int num_experts) -> (Tensor rows, "
      "Tensor count)",
      &dovetail::moe::library_dispatch);
  m.def(
      "moe_combine(Tensor rows, Tensor weight, Tensor expert_idx, Tensor slot, int num_experts) -> "
      "Tensor",
      &dovetail::moe::library_combine);
  m.def("grouped_linear(Tensor x, Tensor weight, Tensor count, Tensor? bias=None) -> Tensor",
        &dovetail::moe::library_linear);
  m.def(
      "moe_dispatch_forward(Tensor x, Tensor expert_idx, Tensor slot, int num_experts) -> (Tensor "
      "rows, Tensor count)");
  m.def(
      "moe_dispatch_backward(Tensor drows, Tensor expert_idx, Tensor slot, int num_experts) -> "
      "Tensor");
  m.def(
      "moe_combine_forward(Tensor rows, Tensor weight, Tensor expert_idx, Tensor slot, int "
      "num_experts) -> Tensor");
  m.def(
      "moe_combine_backward(Tensor dy, Tensor rows, Tensor weight, Tensor expert_idx, Tensor slot, "
      "int num_experts) -> (Tensor, Tensor)");
  m.def("grouped_linear_forward(Tensor x, Tensor weight, Tensor count, Tensor? bias) -> Tensor");
  m.def(
      "grouped_linear_backward(Tensor dy, Tensor x, Tensor weight, Tensor count, bool[3] wanted) "
      "-> (Tensor, Tensor, Tensor)");
}
// words: on

TORCH_LIBRARY_IMPL(dovetail, CPU, m) {
  dovetail::implement<"moe_dispatch_forward", dovetail::moe::dispatch_forward>(m);
  dovetail::implement<"moe_dispatch_backward", dovetail::moe::dispatch_backward>(m);
  dovetail::implement<"moe_combine_forward", dovetail::moe::combine_forward>(m);
  dovetail::implement<"moe_combine_backward", dovetail::moe::combine_backward>(m);
  dovetail::implement<"grouped_linear_forward", dovetail::moe::linear_forward>(m);
  dovetail::implement<"grouped_linear_backward", dovetail::moe::linear_backward>(m);
}
TORCH_LIBRARY_IMPL(dovetail, CUDA, m) {
  dovetail::implement<"moe_dispatch_forward", dovetail::moe::dispatch_forward>(m);
  dovetail::implement<"moe_dispatch_backward", dovetail::moe::dispatch_backward>(m);
  dovetail::implement<"moe_combine_forward", dovetail::moe::combine_forward>(m);
  dovetail::implement<"moe_combine_backward", dovetail::moe::combine_backward>(m);
  dovetail::implement<"grouped_linear_forward", dovetail::moe::linear_forward>(m);
  dovetail::implement<"grouped_linear_backward", dovetail::moe::linear_backward>(m);
}
TORCH_LIBRARY_IMPL(dovetail, Autograd, m) {
  using dovetail::once_differentiable;
  using dovetail::moe::kInFloat64;
  m.impl("moe_dispatch_backward", once_differentiable({"moe_dispatch", kInFloat64}));
  m.impl("moe_combine_backward", once_differentiable({"moe_combine", kInFloat64}));
  m.impl("grouped_linear_backward", once_differentiable(dovetail::moe::kGroupedLinear));
}
TORCH_LIBRARY_IMPL(dovetail, AutocastCPU, m) {
  m.impl("grouped_linear", &dovetail::moe::autocast_linear<c10::DeviceType::CPU>);
}
TORCH_LIBRARY_IMPL(dovetail, AutocastCUDA, m) {
  m.impl("grouped_linear", &dovetail::moe::autocast_linear<c10::DeviceType::CUDA>);
}
