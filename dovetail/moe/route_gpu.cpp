#include "dovetail/moe/route_gpu.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "dovetail/base/once_differentiable.h"
#include "dovetail/base/operation.h"
#include "dovetail/moe/choose.h"
#include "dovetail/moe/choose_gpu.h"
#include "dovetail/moe/cuda_kernels.h"
#include "dovetail/moe/remedies.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe::gpu {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kRouteOp = "moe_route";

bool on_16_bytes(const at::Tensor& rows) {
  return rows.size(1) % 4 == 0 && reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0;
}

RouteShape shape_of(const at::Tensor& x, const RoutingSpec& spec) {
  return {.tokens = x.size(0),
          .experts = x.size(1),
          .k = spec.k,
          .softmax = spec.score == Score::kSoftmax,
          .normalized = spec.k > 1 && spec.normalize != Normalize::kNone,
          .by_vectors = !x.is_meta() && on_16_bytes(x),
          .scale = static_cast<float>(spec.scale)};
}

/// Returns weight, mean_score, load_loss, z_loss, expert and the relative load of each expert.
variable_list routed(const at::Tensor& x, const at::Tensor& bias, const RoutingSpec& spec) {
  const int64_t tokens = x.size(0), experts = x.size(1), parts = route_parts(tokens);
  const at::Tensor weight = at::empty({tokens, spec.k}, x.options()),
                   mean_score = at::empty({experts}, x.options()),
                   load_loss = at::empty({}, x.options()), z_loss = at::empty({}, x.options()),
                   expert = at::empty({tokens, spec.k}, x.options().dtype(at::kInt)),
                   relative_load = at::empty({experts}, x.options()),
                   sums = at::empty({parts * (experts + 1)}, x.options()),
                   counts = at::empty({parts * experts + 1}, expert.options());
  const int64_t counted = spec.load_count == LoadCount::kFirstChoice ? 1 : spec.k;
  if (!x.is_meta())
    cuda_kernels_for(kRouteOp).route(
        {.shape = shape_of(x, spec),
         .groups = spec.groups,
         .top_groups = spec.top_groups,
         .summed = static_cast<int>(std::min<int64_t>(
             experts / spec.groups, spec.group_score == GroupScore::kTop2 ? 2 : 1)),
         .counted = counted,
         .load_factor = static_cast<float>(static_cast<double>(experts) /
                                           static_cast<double>(tokens * counted)),
         .logits = x.const_data_ptr<float>(),
         .bias = ops::data_or_null(bias),
         .expert = expert.mutable_data_ptr<int32_t>(),
         .weight = weight.mutable_data_ptr<float>(),
         .mean_score = mean_score.mutable_data_ptr<float>(),
         .relative_load = relative_load.mutable_data_ptr<float>(),
         .load_loss = load_loss.mutable_data_ptr<float>(),
         .z_loss = z_loss.mutable_data_ptr<float>(),
         .share_parts = sums.mutable_data_ptr<float>(),
         .square_parts = sums.mutable_data_ptr<float>() + parts * experts,
         .count_parts = counts.mutable_data_ptr<int32_t>(),
         .finished = counts.mutable_data_ptr<int32_t>() + parts * experts});
  return {weight, mean_score, load_loss, z_loss, expert, relative_load};
}

/// Returns the gradient of x. reads: x, expert, relative load, then the gradients of the first four
/// results of `routed`, contiguous or undefined.
at::Tensor logits_gradient(const variable_list& reads, RouteShape shape) {
  const at::Tensor &x = reads[0], &expert = reads[1], &relative_load = reads[2];
  at::Tensor dx = at::empty_like(x);
  if (x.is_meta()) return dx;
  shape.tokens = x.size(0);
  shape.experts = x.size(1);
  shape.by_vectors = on_16_bytes(x) && on_16_bytes(dx);
  cuda_kernels_for(kRouteOp).route_gradient({.shape = shape,
                                             .logits = x.const_data_ptr<float>(),
                                             .expert = expert.const_data_ptr<int32_t>(),
                                             .relative_load = relative_load.const_data_ptr<float>(),
                                             .dweight = ops::data_or_null(reads[3]),
                                             .dmean_score = ops::data_or_null(reads[4]),
                                             .dload_loss = ops::data_or_null(reads[5]),
                                             .dz_loss = ops::data_or_null(reads[6]),
                                             .dlogits = dx.mutable_data_ptr<float>()});
  return dx;
}

/// Constants of a RouteFunction.
struct Options {
  RoutingSpec spec;
  at::Tensor bias;  ///< (E) float32, or undefined
};

/// Results: weight, mean_score, load_loss, z_loss and expert.
class RouteFunction : public torch::autograd::Function<RouteFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const Options& options) {
    const RoutingSpec& spec = options.spec;
    variable_list made = operation("dovetail::moe_route", {.reads = {x, options.bias}},
                                   [spec](const Operands& inputs) {
                                     const auto [x, bias] = inputs.read<2>();
                                     return routed(x, bias, spec);
                                   });
    context->saved_data["k"] = spec.k;
    context->saved_data["softmax"] = spec.score == Score::kSoftmax;
    context->saved_data["normalized"] = spec.k > 1 && spec.normalize != Normalize::kNone;
    context->saved_data["scale"] = spec.scale;
    context->save_for_backward({x, made[4], made[5]});
    context->mark_non_differentiable({made[4]});
    context->set_materialize_grads(false);
    made.pop_back();
    return made;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list reads = context->get_saved_variables();
    const variable_list depends_on = {gradients[0], gradients[1], gradients[2], gradients[3],
                                      reads[0]};
    variable_list out = differentiate_once({kRouteOp, kInFloat64}, depends_on, [&] {
      for (size_t i = 0; i < 4; ++i)
        reads.push_back(gradients[i].defined() ? gradients[i].contiguous() : gradients[i]);
      const auto& options = context->saved_data;
      const RouteShape shape = {.tokens = 0,
                                .experts = 0,
                                .k = options.at("k").toInt(),
                                .softmax = options.at("softmax").toBool(),
                                .normalized = options.at("normalized").toBool(),
                                .by_vectors = false,
                                .scale = static_cast<float>(options.at("scale").toDouble())};
      return operation("dovetail::moe_route_gradient", {.reads = reads},
                       [shape](const Operands& inputs) {
                         return variable_list{logits_gradient(inputs.reads, shape)};
                       });
    });
    out.emplace_back();  // for the options
    return out;
  }
};

}  // namespace

std::string fused_route_obstacle(const at::Tensor& x, const RoutingSpec& spec,
                                 const RoutingInputs& inputs) {
  if (x.scalar_type() != at::kFloat) return "logits are not float32";
  if (x.size(0) == 0) return "there are no tokens";
  if (x.size(1) > kMostRoutedExperts)
    return fmt::format("there are more than {} experts", kMostRoutedExperts);
  if (spec.selection != Selection::kTopK || inputs.chosen.defined())
    return "the largest scores do not choose the experts";
  if (inputs.draw.defined()) return "draws drop choices";
  if (spec.sequence > 0) return "each sequence has a load loss";
  if (spec.batch_prioritized) return "tokens take slots by their scores";
  if (spec.drop == Drop::kNone) return "";
  if (spec.drop == Drop::kProbability) return "the smallest scores are dropped";
  if (spec.k > 1 && spec.normalize == Normalize::kAfter)
    return "weights are normalized after drops";
  if (spec.capacity == 0 && spec.capacity_factor <= 0) return "the capacity depends on counts";
  return "";
}

at::Tensor kept_choices(const at::Tensor& count, const RoutingSpec& spec, int64_t capacity) {
  return spec.drop == Drop::kNone ? count : count.clamp_max(capacity);
}

Routing route(const at::Tensor& x, const RoutingSpec& spec, const at::Tensor& bias) {
  const at::Tensor of_experts =
      bias.defined() ? bias.detach().to(at::kFloat).contiguous() : at::Tensor();
  const variable_list made = RouteFunction::apply(x, Options{spec, of_experts});
  Routing routing = {.expert = made[4],
                     .weight = made[0],
                     .load_loss = made[2],
                     .mean_score = made[1],
                     .z_loss = made[3]};
  if (spec.drop != Drop::kNone) routing.capacity = capacity(spec, x.size(0), x.size(1), 0);
  const auto slots =
      operation("dovetail::moe_take_slots", {.reads = {routing.expert}},
                [spec, experts = x.size(1), capacity = routing.capacity](const Operands& inputs) {
                  const Slots taken = take_slots(inputs.reads[0], spec, experts, capacity);
                  return std::vector{taken.slot, taken.count};
                });
  routing.slot = slots[0];
  routing.count = slots[1];
  routing.kept = kept_choices(routing.count, spec, routing.capacity);
  if (spec.drop != Drop::kNone)
    routing.weight = at::where(routing.slot >= 0, routing.weight, at::zeros({}, x.options()));
  return routing;
}

}  // namespace dovetail::moe::gpu
