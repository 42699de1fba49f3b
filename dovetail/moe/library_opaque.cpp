#include "dovetail/moe/library_opaque.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/library.h"
#include "dovetail/base/once_differentiable.h"
#include "dovetail/moe/known_choices.h"
#include "dovetail/moe/library_choices.h"
#include "dovetail/moe/library_operator.h"
#include "dovetail/moe/remedies.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe {

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using Tensors6 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// A RoutingSpec as arguments of an operator.
struct SpecNumbers {
  std::vector<int64_t> whole;
  std::vector<double> real;
};

/// Calls `f` with each member of a RoutingSpec, always in the same order.
template <class Spec, class F>
void for_each_member(Spec& spec, const F& f) {
  f(spec.k);
  f(spec.selection);
  f(spec.score);
  f(spec.normalize);
  f(spec.scale);
  f(spec.slot_order);
  f(spec.batch_prioritized);
  f(spec.drop);
  f(spec.capacity_rule);
  f(spec.capacity_factor);
  f(spec.capacity);
  f(spec.groups);
  f(spec.top_groups);
  f(spec.group_score);
  f(spec.load_count);
  f(spec.sequence);
  f(spec.draw_frees_slot);
}

SpecNumbers numbers_of(const RoutingSpec& spec) {
  SpecNumbers numbers;
  for_each_member(spec, [&](const auto& member) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(member)>, double>)
      numbers.real.push_back(member);
    else
      numbers.whole.push_back(static_cast<int64_t>(member));
  });
  return numbers;
}

RoutingSpec spec_of(at::IntArrayRef whole, at::ArrayRef<double> real) {
  RoutingSpec spec;
  const SpecNumbers usual = numbers_of(spec);
  user_check(whole.size() == usual.whole.size() && real.size() == usual.real.size(),
             "moe_route_forward: {} and {} numbers of options, not {} and {}; call moe_route",
             whole.size(), real.size(), usual.whole.size(), usual.real.size());
  size_t next_whole = 0, next_real = 0;
  for_each_member(spec, [&](auto& member) {
    using Member = std::remove_cvref_t<decltype(member)>;
    if constexpr (std::is_same_v<Member, double>)
      member = real[next_real++];
    else
      member = static_cast<Member>(whole[next_whole++]);
  });
  return spec;
}

std::optional<at::Tensor> optional(const at::Tensor& x) {
  return x.defined() ? std::optional(x) : std::nullopt;
}

at::ScalarType sum_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Operators.

Tensors6 route_forward(const at::Tensor& logits, const std::optional<at::Tensor>& bias,
                       const std::optional<at::Tensor>& draw,
                       const std::optional<at::Tensor>& chosen, at::IntArrayRef whole,
                       at::ArrayRef<double> real) {
  const at::NoGradGuard no_grad;
  const Routing routing = route(logits, spec_of(whole, real),
                                {.bias = bias.value_or(at::Tensor()),
                                 .draw = draw.value_or(at::Tensor()),
                                 .chosen = chosen.value_or(at::Tensor())});
  return {routing.expert, routing.slot,      routing.weight,
          routing.count,  routing.load_loss, routing.z_loss};
}

Tensors6 route_forward_shapes(const at::Tensor& logits, const std::optional<at::Tensor>&,
                              const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
                              at::IntArrayRef whole, at::ArrayRef<double> real) {
  const RoutingSpec spec = spec_of(whole, real);
  if (!logits.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    check_logits("moe_route", logits);
    check_spec("moe_route", spec, logits.size(1));
  }
  const c10::SymInt tokens = logits.sym_size(0), experts = logits.sym_size(1);
  const auto empty = [&](const std::vector<c10::SymInt>& sizes, at::ScalarType dtype) {
    return at::empty_symint(sizes, logits.options().dtype(dtype));
  };
  const at::ScalarType sums = sum_type(logits);
  return {empty({tokens, spec.k}, at::kInt),
          empty({tokens, spec.k}, at::kInt),
          empty({tokens, spec.k}, sums),
          empty({experts}, at::kLong),
          empty({}, sums),
          empty({}, sums)};
}

at::Tensor route_backward(const at::Tensor& logits, const at::Tensor& expert,
                          const at::Tensor& slot, const at::Tensor& dweight,
                          const at::Tensor& dload, const at::Tensor& dz, at::IntArrayRef whole,
                          at::ArrayRef<double> real) {
  const Recording recording;
  const at::Tensor x = logits.detach().requires_grad_();
  const Routing again = routing_of_choices(x, expert, slot, spec_of(whole, real));
  return torch::autograd::grad({again.weight, again.load_loss, again.z_loss}, {x},
                               {dweight, dload, dz})[0]
      .detach();
}

at::Tensor route_backward_shapes(const at::Tensor& logits, const at::Tensor&, const at::Tensor&,
                                 const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 at::IntArrayRef, at::ArrayRef<double>) {
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

ExpertWeights weights_of(at::TensorList up, at::TensorList down, at::TensorList up_bias,
                         at::TensorList down_bias, c10::string_view activation) {
  return {.activation = {activation.data(), activation.size()},
          .up = up.vec(),
          .down = down.vec(),
          .up_bias = up_bias.vec(),
          .down_bias = down_bias.vec()};
}

at::Tensor experts_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& expert,
                           const at::Tensor& slot, at::TensorList up, at::TensorList down,
                           at::TensorList up_bias, at::TensorList down_bias,
                           c10::string_view activation) {
  const at::NoGradGuard no_grad;
  return checked_experts(x, weight, expert, slot,
                         weights_of(up, down, up_bias, down_bias, activation));
}

at::Tensor experts_forward_shapes(const at::Tensor& x, const at::Tensor& weight, const at::Tensor&,
                                  const at::Tensor&, at::TensorList, at::TensorList, at::TensorList,
                                  at::TensorList, c10::string_view) {
  return at::empty_symint(x.sym_sizes(), weight.options());
}

/// Gradients of x, weight, up, down, up_bias and down_bias, in this order.
variable_list experts_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& expert, const at::Tensor& slot, at::TensorList up,
                               at::TensorList down, at::TensorList up_bias,
                               at::TensorList down_bias, c10::string_view activation) {
  const Recording recording;
  variable_list leaves;
  const auto leaf = [&](const at::Tensor& tensor) {
    leaves.push_back(tensor.detach().requires_grad_());
    return leaves.back();
  };
  const auto all = [&](at::TensorList tensors) {
    variable_list made;
    for (const at::Tensor& tensor : tensors) made.push_back(leaf(tensor));
    return made;
  };
  const at::Tensor own_x = leaf(x), own_weight = leaf(weight);
  ExpertWeights experts = {.activation = {activation.data(), activation.size()}};
  experts.up = all(up);
  experts.down = all(down);
  experts.up_bias = all(up_bias);
  experts.down_bias = all(down_bias);
  const at::Tensor y = checked_experts(own_x, own_weight, expert, slot, experts);
  variable_list gradients = torch::autograd::grad({y}, leaves, {dy}, /*retain_graph=*/std::nullopt,
                                                  /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < leaves.size(); ++i)
    gradients[i] = gradients[i].defined() ? gradients[i].detach() : at::zeros_like(leaves[i]);
  return gradients;
}

variable_list experts_backward_shapes(const at::Tensor&, const at::Tensor& x,
                                      const at::Tensor& weight, const at::Tensor&,
                                      const at::Tensor&, at::TensorList up, at::TensorList down,
                                      at::TensorList up_bias, at::TensorList down_bias,
                                      c10::string_view) {
  variable_list gradients;
  const auto add = [&](const at::Tensor& tensor) {
    gradients.push_back(at::empty_symint(tensor.sym_sizes(), tensor.options()));
  };
  add(x);
  add(weight);
  for (const at::TensorList list : {up, down, up_bias, down_bias})
    for (const at::Tensor& tensor : list) add(tensor);
  return gradients;
}

variable_list unpacked(std::vector<SavedVariable>& saved) {
  variable_list tensors;
  for (SavedVariable& variable : saved) tensors.push_back(variable.unpack());
  return tensors;
}

/// Node with saved tensors.
struct SavingNode : torch::autograd::Node {
  std::vector<SavedVariable> saved;

  void save(const variable_list& tensors) {
    for (const at::Tensor& tensor : tensors) saved.emplace_back(tensor, false);
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& variable : saved) variable.reset_data();
  }
};

struct MoeRouteBackward : SavingNode {
  SpecNumbers numbers;

  std::string name() const override { return "MoeRouteBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const variable_list tensors = unpacked(saved);  // logits, expert, slot
    const auto options = tensors[0].options().dtype(sum_type(tensors[0]));
    const auto or_zero = [&](size_t i, c10::SymIntArrayRef sizes) {
      return gradients[i].defined() ? gradients[i] : at::zeros_symint(sizes, options);
    };
    static auto op = find_operator("dovetail::moe_route_backward", &route_backward);
    return {op.call(tensors[0], tensors[1], tensors[2], or_zero(0, tensors[1].sym_sizes()),
                    or_zero(1, {}), or_zero(2, {}), numbers.whole, numbers.real)};
  }
};

struct MoeExpertsBackward : SavingNode {
  size_t experts = 0;
  bool bias = false;
  std::string activation;

  std::string name() const override { return "MoeExpertsBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const variable_list tensors = unpacked(saved);
    const at::TensorList lists = at::TensorList(tensors).slice(4);
    const auto list = [&](size_t i) { return lists.slice(i * experts, experts); };
    static auto op = find_operator("dovetail::moe_experts_backward", &experts_backward);
    return op.call(gradients[0], tensors[0], tensors[1], tensors[2], tensors[3], list(0), list(1),
                   bias ? list(2) : at::TensorList(), bias ? list(3) : at::TensorList(),
                   activation);
  }
};

}  // namespace

Routing opaque_route(const at::Tensor& logits, const RoutingSpec& spec,
                     const RoutingInputs& inputs) {
  const SpecNumbers numbers = numbers_of(spec);
  std::shared_ptr<MoeRouteBackward> node;
  if (torch::autograd::compute_requires_grad(logits)) {
    node = {new MoeRouteBackward, torch::autograd::deleteNode};
    node->set_next_edges(torch::autograd::collect_next_edges(logits));
    node->numbers = numbers;
  }
  Routing routing;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    static auto op = find_operator("dovetail::moe_route_forward", &route_forward);
    std::tie(routing.expert, routing.slot, routing.weight, routing.count, routing.load_loss,
             routing.z_loss) = op.call(logits, optional(inputs.bias), optional(inputs.draw),
                                       optional(inputs.chosen), numbers.whole, numbers.real);
  }
  if (node) {
    node->save({logits, routing.expert, routing.slot});
    for (const at::Tensor& made : {routing.weight, routing.load_loss, routing.z_loss})
      torch::autograd::set_history(made, node);
  }
  return routing;
}

at::Tensor opaque_experts(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& expert,
                          const at::Tensor& slot, const ExpertWeights& experts) {
  variable_list differentiable = {x, weight};
  for (const auto* list : {&experts.up, &experts.down, &experts.up_bias, &experts.down_bias})
    differentiable.insert(differentiable.end(), list->begin(), list->end());
  const bool requires_grad =
      at::GradMode::is_enabled() &&
      std::ranges::any_of(differentiable, [](const at::Tensor& t) { return t.requires_grad(); });
  std::shared_ptr<MoeExpertsBackward> node;
  if (requires_grad) {
    node = {new MoeExpertsBackward, torch::autograd::deleteNode};
    node->set_next_edges(torch::autograd::collect_next_edges(differentiable));
    node->experts = experts.experts();
    node->bias = !experts.up_bias.empty();
    node->activation = experts.activation;
  }
  at::Tensor y;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    static auto op = find_operator("dovetail::moe_experts_forward", &experts_forward);
    y = op.call(x, weight, expert, slot, experts.up, experts.down, experts.up_bias,
                experts.down_bias, experts.activation);
  }
  if (node) {
    variable_list saved = {x, weight, expert, slot};
    saved.insert(saved.end(), differentiable.begin() + 2, differentiable.end());
    node->save(saved);
    torch::autograd::set_history(y, node);
  }
  return y;
}

}  // namespace dovetail::moe

// words: off
TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  m.def(
      "moe_route_forward(Tensor logits, Tensor? bias, Tensor? draw, Tensor? chosen, int[] whole, "
      "float[] real) -> (Tensor expert_idx, Tensor slot, Tensor weight, Tensor count, Tensor "
      "load_loss, Tensor z_loss)");
  m.def(
      "moe_route_backward(Tensor logits, Tensor expert_idx, Tensor slot, Tensor dweight, Tensor "
      "dload, Tensor dz, int[] whole, float[] real) -> Tensor");
  m.def(
      "moe_experts_forward(Tensor x, Tensor weight, Tensor expert_idx, Tensor slot, Tensor[] up, "
      "Tensor[] down, Tensor[] up_bias, Tensor[] down_bias, str activation) -> Tensor");
  m.def(
      "moe_experts_backward(Tensor dy, Tensor x, Tensor weight, Tensor expert_idx, Tensor slot, "
      "Tensor[] up, Tensor[] down, Tensor[] up_bias, Tensor[] down_bias, str activation) -> "
      "Tensor[]");
}
// words: on

TORCH_LIBRARY_IMPL(dovetail, CPU, m) {
  dovetail::implement<"moe_route_forward", dovetail::moe::route_forward>(m);
  dovetail::implement<"moe_route_backward", dovetail::moe::route_backward>(m);
  dovetail::implement<"moe_experts_forward", dovetail::moe::experts_forward>(m);
  dovetail::implement<"moe_experts_backward", dovetail::moe::experts_backward>(m);
}
TORCH_LIBRARY_IMPL(dovetail, CUDA, m) {
  dovetail::implement<"moe_route_forward", dovetail::moe::route_forward>(m);
  dovetail::implement<"moe_route_backward", dovetail::moe::route_backward>(m);
  dovetail::implement<"moe_experts_forward", dovetail::moe::experts_forward>(m);
  dovetail::implement<"moe_experts_backward", dovetail::moe::experts_backward>(m);
}
TORCH_LIBRARY_IMPL(dovetail, Meta, m) {
  m.impl("moe_route_forward", &dovetail::moe::route_forward_shapes);
  m.impl("moe_route_backward", &dovetail::moe::route_backward_shapes);
  m.impl("moe_experts_forward", &dovetail::moe::experts_forward_shapes);
  m.impl("moe_experts_backward", &dovetail::moe::experts_backward_shapes);
}
TORCH_LIBRARY_IMPL(dovetail, Autograd, m) {
  using dovetail::moe::kInFloat64;
  m.impl("moe_route_backward", dovetail::once_differentiable({"moe_route", kInFloat64}));
  m.impl("moe_experts_backward", dovetail::once_differentiable({"moe_experts", kInFloat64}));
}
