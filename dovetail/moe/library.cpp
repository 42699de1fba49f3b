#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "dovetail/base/error.h"
#include "dovetail/base/library.h"
#include "dovetail/base/traced.h"
#include "dovetail/moe/balanced_assignment.h"
#include "dovetail/moe/dispatch.h"
#include "dovetail/moe/draw.h"
#include "dovetail/moe/experts.h"
#include "dovetail/moe/library_choices.h"
#include "dovetail/moe/library_opaque.h"
#include "dovetail/moe/noisy.h"
#include "dovetail/moe/routing.h"
#include "dovetail/ops/simd_level.h"

/// Registers the routers and the experts of one rank as operators torch.ops.dovetail.moe_*.
namespace dovetail::moe {

namespace {

std::string_view view(c10::string_view text) { return {text.data(), text.size()}; }

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> library_route(
    const at::Tensor& logits, int64_t k, c10::string_view score, c10::string_view normalize,
    c10::string_view slot_order, c10::string_view drop, double capacity_factor, int64_t capacity,
    bool batch_prioritized, const std::optional<at::Tensor>& bias, int64_t num_groups,
    int64_t top_groups, double scale, c10::string_view aux, c10::string_view group_score,
    c10::string_view capacity_rule, const std::optional<at::Tensor>& draw, bool draw_frees_slot,
    c10::string_view router, const std::optional<at::Tensor>& chosen, int64_t sequence) {
  const RoutingSpec spec = {.k = k,
                            .selection = parse_selection(view(router)),
                            .score = parse_score(view(score)),
                            .normalize = parse_normalize(view(normalize)),
                            .scale = scale,
                            .slot_order = parse_slot_order(view(slot_order)),
                            .batch_prioritized = batch_prioritized,
                            .drop = parse_drop(view(drop)),
                            .capacity_rule = parse_capacity_rule(view(capacity_rule)),
                            .capacity_factor = capacity_factor,
                            .capacity = capacity,
                            .groups = num_groups,
                            .top_groups = top_groups,
                            .group_score = parse_group_score(view(group_score)),
                            .load_count = parse_load_count(view(aux)),
                            .sequence = sequence,
                            .draw_frees_slot = draw_frees_slot};
  const auto readable_or_none = [](const std::optional<at::Tensor>& x) {
    return x && !is_traced(*x) ? readable("moe_route", *x) : x.value_or(at::Tensor());
  };
  const RoutingInputs inputs = {.bias = readable_or_none(bias),
                                .draw = readable_or_none(draw),
                                .chosen = readable_or_none(chosen)};
  const bool traced = is_traced(logits) || logits.is_meta();
  if (!traced && inputs.chosen.defined() && inputs.chosen.is_cuda() && inputs.chosen.dim() == 2)
    check_chosen_values(inputs.chosen, logits.size(-1));
  const Routing routing = traced ? opaque_route(logits, spec, inputs)
                                 : route(readable("moe_route", logits), spec, inputs);
  return {routing.expert, routing.slot,      routing.weight,
          routing.count,  routing.load_loss, routing.z_loss};
}

at::Tensor library_sinkhorn(const at::Tensor& logits) {
  check_logits("moe_sinkhorn", logits);
  return logits.is_meta() ? at::empty_like(logits, at::kDouble) : sinkhorn(logits);
}

at::Tensor library_base(const at::Tensor& logits) {
  check_logits("moe_base", logits);
  return logits.is_meta() ? at::empty({logits.size(0)}, logits.options().dtype(at::kInt))
                          : assign_balanced(logits);
}

at::Tensor library_importance_loss(const at::Tensor& weight, const at::Tensor& expert,
                                   int64_t experts) {
  if (is_traced(weight)) return importance_loss(weight, expert, experts);
  constexpr std::string_view kName = "moe_importance_loss";
  return importance_loss(readable(kName, weight), readable(kName, expert), experts);
}

at::Tensor library_smooth_load_loss(const at::Tensor& logits, const at::Tensor& noise,
                                    const at::Tensor& noise_scale, int64_t k) {
  if (is_traced(logits)) return smooth_load_loss(logits, noise, noise_scale, k);
  constexpr std::string_view kName = "moe_smooth_load_loss";
  return smooth_load_loss(readable(kName, logits), readable(kName, noise),
                          readable(kName, noise_scale), k);
}

at::Tensor library_hash(const at::Tensor& tokens, int64_t experts, int64_t k, int64_t seed) {
  user_check(tokens.dim() == 1 && tokens.scalar_type() == at::kLong,
             "moe_hash: tokens must be (T) int64, but are {}", ops::describe(tokens));
  user_check(k >= 1 && k <= experts, "moe_hash: k = {} must be 1 to {}, the number of experts", k,
             experts);
  return hash_choices(static_cast<uint64_t>(seed), tokens, experts, k);
}

at::Tensor hash_shapes(const at::Tensor& tokens, int64_t, int64_t k, int64_t) {
  return at::empty_symint({tokens.sym_size(0), k}, tokens.options().dtype(at::kInt));
}

std::tuple<at::Tensor, at::Tensor> library_expert_choice(const at::Tensor& logits,
                                                         int64_t capacity) {
  const ExpertChoice choice = choose_tokens(logits, capacity);
  return {choice.token, choice.weight};
}

at::Tensor library_experts(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& expert,
                           const at::Tensor& slot, at::TensorList up, at::TensorList down,
                           at::TensorList up_bias, at::TensorList down_bias,
                           c10::string_view activation) {
  if (is_traced(x) || x.is_meta())
    return opaque_experts(x, weight, expert, slot,
                          {.activation = std::string(view(activation)),
                           .up = up.vec(),
                           .down = down.vec(),
                           .up_bias = up_bias.vec(),
                           .down_bias = down_bias.vec()});
  constexpr std::string_view kName = "moe_experts";
  return checked_experts(readable(kName, x), readable(kName, weight), readable(kName, expert),
                         readable(kName, slot),
                         {.activation = std::string(view(activation)),
                          .up = readable(kName, up),
                          .down = readable(kName, down),
                          .up_bias = readable(kName, up_bias),
                          .down_bias = readable(kName, down_bias)});
}

/// Experts compute in autocast's dtype, and weights of choices stay float32.
template <c10::DeviceType kDevice>
at::Tensor autocast_experts(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& expert,
                            const at::Tensor& slot, at::TensorList up, at::TensorList down,
                            at::TensorList up_bias, at::TensorList down_bias,
                            c10::string_view activation) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(kDevice);
  const auto cast = [dtype](at::TensorList tensors) {
    return at::autocast::cached_cast(dtype, tensors, kDevice);
  };
  return library_experts(at::autocast::cached_cast(dtype, x, kDevice),
                         at::autocast::cached_cast(at::kFloat, weight, kDevice), expert, slot,
                         cast(up), cast(down), cast(up_bias), cast(down_bias), activation);
}

}  // namespace

}  // namespace dovetail::moe

// words: off
TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  m.def(
      "moe_route(Tensor logits, int k, str score=\"softmax\", str normalize=\"before\", str "
      "slot_order=\"choice\", str drop=\"position\", float capacity_factor=1.0, int capacity=0, "
      "bool batch_prioritized=False, Tensor? bias=None, int num_groups=1, int top_groups=1, float "
      "scale=1.0, str aux=\"first_choice\", str group_score=\"top2\", str capacity_rule=\"tutel\", "
      "Tensor? draw=None, bool draw_frees_slot=False, str router=\"top_k\", Tensor? chosen=None, "
      "int sequence=0) -> (Tensor expert_idx, Tensor slot, Tensor weight, Tensor count, Tensor "
      "aux_loss, Tensor z_loss)",
      &dovetail::moe::library_route);
  dovetail::define<"moe_sinkhorn(Tensor logits) -> Tensor", dovetail::moe::library_sinkhorn>(m);
  dovetail::define<"moe_base(Tensor logits) -> Tensor expert_idx", dovetail::moe::library_base>(m);
  m.def("moe_importance_loss(Tensor weight, Tensor expert_idx, int num_experts) -> Tensor",
        &dovetail::moe::library_importance_loss);
  m.def("moe_smooth_load_loss(Tensor logits, Tensor noise, Tensor noise_scale, int k) -> Tensor",
        &dovetail::moe::library_smooth_load_loss);
  m.def("moe_hash(Tensor tokens, int num_experts, int k, int seed) -> Tensor expert_idx");
  dovetail::define<
      "moe_expert_choice(Tensor logits, int capacity) -> (Tensor token_idx, Tensor weight)",
      dovetail::moe::library_expert_choice>(m);
  m.def(
      "moe_experts(Tensor x, Tensor weight, Tensor expert_idx, Tensor slot, Tensor[] up, Tensor[] "
      "down, Tensor[] up_bias, Tensor[] down_bias, str activation) -> Tensor",
      &dovetail::moe::library_experts);
}
// words: on

TORCH_LIBRARY_IMPL(dovetail, AutocastCPU, m) {
  m.impl("moe_experts", &dovetail::moe::autocast_experts<c10::DeviceType::CPU>);
}
TORCH_LIBRARY_IMPL(dovetail, AutocastCUDA, m) {
  m.impl("moe_experts", &dovetail::moe::autocast_experts<c10::DeviceType::CUDA>);
}
TORCH_LIBRARY_IMPL(dovetail, CPU, m) {
  dovetail::implement<"moe_hash", dovetail::moe::library_hash>(m);
}
TORCH_LIBRARY_IMPL(dovetail, Meta, m) { m.impl("moe_hash", &dovetail::moe::hash_shapes); }
