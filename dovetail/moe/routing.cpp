#include "dovetail/moe/routing.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/gpu.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/schema/enum_names.h"
#include "dovetail/base/trace.h"
#include "dovetail/moe/balanced_assignment.h"
#include "dovetail/moe/choose.h"
#include "dovetail/moe/known_choices.h"
#include "dovetail/moe/names.h"
#include "dovetail/moe/route_gpu.h"
#include "dovetail/moe/slot_order.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe {

namespace {

constexpr int64_t kLeastMeshCapacity = 4;

void check_chosen(const at::Tensor& chosen, const at::Tensor& logits, const RoutingSpec& spec) {
  user_check(spec.selection == Selection::kTopK,
             "moe_route: chosen stands in place of router; leave one of them out");
  user_check(chosen.dim() == 2 && chosen.size(0) == logits.size(0) && chosen.size(1) == spec.k &&
                 (chosen.scalar_type() == at::kInt || chosen.scalar_type() == at::kLong) &&
                 chosen.device() == logits.device(),
             "moe_route: chosen must be int32 or int64 and [{}, {}], k experts a token, but is {}",
             logits.size(0), spec.k, ops::describe(chosen));
  // On a GPU the check would make the host wait in every step.
  if (chosen.is_cpu()) check_chosen_values(chosen, logits.size(1));
}

void check_inputs(const RoutingInputs& inputs, const at::Tensor& logits, const RoutingSpec& spec) {
  const auto& [bias, draw, chosen] = inputs;
  const auto is_vector = [&](const at::Tensor& x, int64_t size) {
    return x.dim() == 1 && x.size(0) == size && at::isFloatingType(x.scalar_type()) &&
           x.device() == logits.device();
  };
  user_check(!bias.defined() || is_vector(bias, logits.size(1)),
             "moe_route: bias must be floating and [{}], one number an expert, but is {}",
             logits.size(1), ops::describe(bias));
  user_check(!bias.defined() || (spec.selection == Selection::kTopK && !chosen.defined()),
             "moe_route: bias is added where router = \"top_k\" chooses, but the experts are "
             "chosen otherwise");
  if (chosen.defined()) check_chosen(chosen, logits, spec);
  if (!draw.defined()) return;
  user_check(spec.k == 2, "moe_route: draw is for the second of two choices, but k = {}", spec.k);
  user_check(is_vector(draw, logits.size(0)),
             "moe_route: draw must be floating and [{}], one number a token, but is {}",
             logits.size(0), ops::describe(draw));
}

/// Converts logits to the dtype of computation. The result is contiguous: ATen computes strided
/// elements with other instructions, and equal logits must tie.
at::Tensor computed(const at::Tensor& logits) {
  return logits.to(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).contiguous();
}

at::Tensor select(const at::Tensor& x, const at::Tensor& scores, const RoutingInputs& inputs,
                  const RoutingSpec& spec) {
  if (inputs.chosen.defined()) return inputs.chosen.to(at::kInt).contiguous();
  const at::Tensor& bias = inputs.bias;
  switch (spec.selection) {
    case Selection::kTopK:
      return choose_experts(
          scores, bias.defined() ? bias.detach().to(scores.scalar_type()).contiguous() : bias,
          spec);
    case Selection::kSinkhorn:
      return choose_experts(sinkhorn(x), {}, spec);
    case Selection::kBase:
      return assign_balanced(x).unsqueeze(1);
    case Selection::kBalanced:
      return assign_in_turn(x.size(0), x.size(1), spec.k, x.device());
  }
  DOVETAIL_CHECK(false, "no selection has the number {}", static_cast<int>(spec.selection));
  return {};
}

/// Returns true if this program has shapes of routing's operators on the meta device. ATen has them
/// in Python alone; tests/train/meta_step_test.cpp registers them to count reads of the host.
bool runs_on_meta() {
  static const bool has_shapes = c10::Dispatcher::singleton()
                                     .findSchemaOrThrow("aten::where", "self")
                                     .hasKernelForDispatchKey(c10::DispatchKey::Meta);
  return has_shapes;
}

Routing shapes_alone(const at::Tensor& x, int64_t k) {
  const int64_t tokens = x.size(0), experts = x.size(1);
  const auto indices = x.options().dtype(at::kInt);
  return {.expert = at::empty({tokens, k}, indices),
          .slot = at::empty({tokens, k}, indices),
          .weight = at::empty({tokens, k}, x.options()),
          .count = at::empty({experts}, x.options().dtype(at::kLong)),
          .load_loss = at::empty({}, x.options()),
          .mean_score = at::empty({experts}, x.options()),
          .z_loss = at::empty({}, x.options())};
}

/// Normalizes scores so that they sum to 1 over the experts.
at::Tensor shares(const at::Tensor& scores, const RoutingSpec& spec) {
  return spec.score == Score::kSoftmax ? scores : scores / scores.sum(1, true).clamp_min(kLeastSum);
}

/// Returns Routing::load_loss. Sequences share one set of operations, whatever their number.
at::Tensor load_loss(const at::Tensor& shares, const Routing& routing, const RoutingSpec& spec) {
  const int64_t tokens = shares.size(0), experts = shares.size(1);
  const int64_t size = spec.sequence > 0 ? spec.sequence : tokens, sequences = tokens / size;
  const int64_t counted = spec.load_count == LoadCount::kFirstChoice ? 1 : spec.k;
  const auto choices = static_cast<double>(size * counted);
  const at::Tensor expert = routing.expert.narrow(1, 0, counted);
  if (sequences == 1) return load_balance(count_choices(expert, experts), choices, shares.mean(0));
  const at::Tensor of_sequence = expert.reshape({sequences, size * counted}).to(at::kLong);
  const at::Tensor counts =
      at::zeros({sequences, experts}, of_sequence.options())
          .scatter_add(1, of_sequence,
                       at::ones({1, 1}, of_sequence.options()).expand_as(of_sequence));
  const at::Tensor mean_score = shares.view({sequences, size, experts}).mean(1);
  const at::Tensor load = counts.to(shares.options()) * (static_cast<double>(experts) / choices);
  return (load * mean_score).sum() / sequences;
}

/// Divides weights by their sum over the choices marked in `kept` (T, k), or over all choices if it
/// is undefined.
at::Tensor normalized(const at::Tensor& weight, const at::Tensor& kept) {
  const at::Tensor counted = kept.defined() ? weight * kept : weight;
  return weight / counted.sum(1, true).clamp_min(kLeastSum);
}

at::Tensor scores_of(const at::Tensor& x, const RoutingSpec& spec) {
  return spec.score == Score::kSoftmax ? at::softmax(x, 1) : at::sigmoid(x);
}

/// Sets weight, losses and mean_score of a routing that has expert and slot. x: logits (T, E);
/// scores: scores_of(x).
void set_weights(Routing& routing, const at::Tensor& x, const at::Tensor& scores,
                 const RoutingSpec& spec) {
  const at::Tensor kept = routing.slot >= 0,
                   chosen = scores.gather(1, routing.expert.to(at::kLong));
  routing.weight = chosen;
  if (spec.k > 1 && spec.normalize != Normalize::kNone)
    routing.weight = normalized(chosen, spec.normalize == Normalize::kAfter ? kept : at::Tensor());
  routing.weight = at::where(kept, routing.weight * spec.scale, at::zeros({}, x.options()));
  if (x.size(0) == 0) {  // a mean over no tokens; still differentiable
    routing.mean_score = x.sum(0);
    routing.load_loss = routing.z_loss = x.sum();
    return;
  }
  const at::Tensor of_one = shares(scores, spec);
  routing.mean_score = of_one.mean(0);
  routing.load_loss = load_loss(of_one, routing, spec);
  routing.z_loss = at::logsumexp(x, 1).square().mean();
}

}  // namespace

void check_logits(const char* op, const at::Tensor& logits) {
  user_check(logits.dim() == 2 && logits.size(1) >= 1 && at::isFloatingType(logits.scalar_type()),
             "{}: logits must be floating, (tokens, experts), but are {}", op,
             ops::describe(logits));
  user_check(logits.is_cpu() || logits.is_meta() || logits.is_cuda(),
             "{}: logits must be on the CPU or a CUDA device, but are {}", op,
             ops::describe(logits));
}

void check_chosen_values(const at::Tensor& chosen, int64_t experts) {
  if (chosen.numel() == 0) return;
  operation("dovetail::moe_check_chosen", {.reads = {chosen}}, [experts](const Operands& inputs) {
    const at::Tensor sorted = std::get<0>(inputs.reads[0].sort(1));
    const bool distinct = !(sorted.slice(1, 1) == sorted.slice(1, 0, -1)).any().item<bool>();
    user_check(
        distinct && sorted.min().item<int64_t>() >= 0 && sorted.max().item<int64_t>() < experts,
        "moe_route: chosen must name different experts for a token, 0 to {}", experts - 1);
    return std::vector<at::Tensor>();
  });
}

at::Tensor load_balance(const at::Tensor& counts, double choices, const at::Tensor& mean_score) {
  return relative_load(counts, choices, mean_score.options()).dot(mean_score);
}

at::Tensor relative_load(const at::Tensor& counts, double choices,
                         const at::TensorOptions& options) {
  return counts.to(options) * (static_cast<double>(counts.size(0)) / choices);
}

int64_t capacity(const RoutingSpec& spec, int64_t tokens, int64_t experts, int64_t largest_count) {
  const double factor = spec.capacity_factor, t = static_cast<double>(tokens),
               e = static_cast<double>(experts), k = static_cast<double>(spec.k);
  if (spec.capacity > 0) return spec.capacity;
  switch (spec.capacity_rule) {
    case CapacityRule::kTutel: {
      const int64_t share = (tokens + experts - 1) / experts;
      const auto of = [&](double cf) {
        return spec.k * static_cast<int64_t>(cf * static_cast<double>(share));
      };
      if (factor > 0) return of(factor);
      return factor == 0 ? largest_count : std::min(largest_count, of(-factor));
    }
    case CapacityRule::kSwitch:
      return static_cast<int64_t>(t / e * factor);
    case CapacityRule::kMegatron:
      return static_cast<int64_t>(std::ceil(t * k / e * factor));
    case CapacityRule::kMegablocks:
      return static_cast<int64_t>(factor * k * t / e);
    case CapacityRule::kMeshTf:
      return std::max(kLeastMeshCapacity, static_cast<int64_t>(t * factor / e));
  }
  DOVETAIL_CHECK(false, "no capacity rule has the number {}", static_cast<int>(spec.capacity_rule));
  return 0;
}

void check_spec(std::string_view owner, const RoutingSpec& spec, int64_t experts) {
  user_check(spec.k >= 1 && spec.k <= experts, "{}: k = {} must be 1 to {}, the number of experts",
             owner, spec.k, experts);
  user_check(spec.groups >= 1 && experts % spec.groups == 0,
             "{}: num_groups = {} does not divide the {} experts", owner, spec.groups, experts);
  user_check(spec.top_groups >= 1 && spec.top_groups <= spec.groups,
             "{}: top_groups = {} must be 1 to num_groups = {}", owner, spec.top_groups,
             spec.groups);
  const int64_t candidates = experts / spec.groups * spec.top_groups;
  user_check(spec.k <= candidates, "{}: k = {} is more than the {} experts of top_groups = {}",
             owner, spec.k, candidates, spec.top_groups);
  user_check(spec.selection == Selection::kTopK || (spec.groups == 1 && spec.top_groups == 1),
             "{}: num_groups and top_groups are read by top-k routers, not by router = \"{}\"",
             owner, kSelectionNames[static_cast<size_t>(spec.selection)]);
  user_check(spec.selection != Selection::kBase || spec.k == 1,
             "{}: router = \"base\" gives each token one expert, but k = {}; use k = 1", owner,
             spec.k);
  user_check(std::isfinite(spec.scale), "{}: scale = {} must be finite", owner, spec.scale);
  user_check(std::isfinite(spec.capacity_factor), "{}: capacity_factor = {} must be finite", owner,
             spec.capacity_factor);
  user_check(spec.sequence >= 0, "{}: sequence = {} must not be negative", owner, spec.sequence);
  user_check(spec.capacity >= 0, "{}: capacity = {} must not be negative", owner, spec.capacity);
  if (spec.drop != Drop::kNone && spec.capacity == 0 && spec.capacity_factor <= 0 &&
      spec.capacity_rule != CapacityRule::kTutel) {
    throw UserError(fmt::format("{}: capacity_factor = {} has no meaning by this capacity_rule; "
                                "only tutel's knows 0 and below",
                                owner, spec.capacity_factor),
                    "use drop = \"none\" for routing without a capacity");
  }
}

Routing route(const at::Tensor& logits, const RoutingSpec& spec, const RoutingInputs& inputs) {
  check_logits("moe_route", logits);
  const int64_t tokens = logits.size(0), experts = logits.size(1);
  check_spec("moe_route", spec, experts);
  check_inputs(inputs, logits, spec);
  user_check(spec.sequence == 0 || tokens % spec.sequence == 0,
             "moe_route: sequence = {} does not divide the {} rows of logits", spec.sequence,
             tokens);
  const at::Tensor x = computed(logits);
  const bool on_cpu_alone =
      spec.selection == Selection::kSinkhorn || spec.selection == Selection::kBase;
  if (x.is_meta() && (on_cpu_alone || !runs_on_meta())) return shapes_alone(x, spec.k);
  const TraceSpan span("dovetail::moe_route");
  if (!x.is_cpu() && gpu::fused_route_obstacle(x, spec, inputs).empty())
    return gpu::route(x, spec, inputs.bias);

  const at::Tensor scores = scores_of(x, spec);
  const at::Tensor fixed = scores.detach().contiguous();
  Routing routing;
  routing.expert = select(x.detach(), fixed, inputs, spec);
  routing.count = count_choices(routing.expert, experts);

  const at::Tensor chosen_fixed = fixed.gather(1, routing.expert.to(at::kLong));
  at::Tensor drawn_out;
  if (inputs.draw.defined())
    drawn_out = 2 * normalized(chosen_fixed, {}).select(1, 1) < inputs.draw;
  if (spec.drop != Drop::kNone) {
    const bool reads_count = spec.capacity == 0 && spec.capacity_factor <= 0 && tokens > 0;
    routing.capacity =
        capacity(spec, tokens, experts, reads_count ? routing.count.max().item<int64_t>() : 0);
  }
  routing.slot = assign_slots(routing.expert, chosen_fixed, visiting_order(fixed, spec), drawn_out,
                              experts, routing.capacity, spec);
  if (!x.is_cpu() && !inputs.draw.defined())
    routing.kept = gpu::kept_choices(routing.count, spec, routing.capacity);
  set_weights(routing, x, scores, spec);
  return routing;
}

Routing routing_of_choices(const at::Tensor& logits, const at::Tensor& expert,
                           const at::Tensor& slot, const RoutingSpec& spec) {
  const at::Tensor x = computed(logits);
  Routing routing = {.expert = expert, .slot = slot};
  set_weights(routing, x, scores_of(x, spec), spec);
  return routing;
}

ExpertChoice choose_tokens(const at::Tensor& logits, int64_t capacity) {
  check_logits("moe_expert_choice", logits);
  const int64_t tokens = logits.size(0), experts = logits.size(1);
  user_check(capacity >= 1 && capacity <= tokens,
             "moe_expert_choice: capacity = {} must be 1 to {}, the number of tokens", capacity,
             tokens);
  const at::Tensor x = computed(logits);
  if (x.is_meta())
    return {at::empty({experts, capacity}, x.options().dtype(at::kInt)),
            at::empty({experts, capacity}, x.options())};
  const TraceSpan span("dovetail::moe_expert_choice");
  const at::Tensor scores = at::softmax(x, 1);
  const at::Tensor token = choose_rows(scores.detach(), capacity);
  return {token, scores.t().gather(1, token.to(at::kLong))};
}

Routing route_by_experts(const at::Tensor& logits, int64_t k, double scale) {
  check_logits("router = \"expert_choice\"", logits);
  const int64_t tokens = logits.size(0), experts = logits.size(1);
  const at::Tensor x = computed(logits);
  if (x.is_meta() || tokens == 0) {
    Routing none = shapes_alone(x, 1);
    if (tokens == 0) none.count.zero_(), none.load_loss = none.z_loss = x.sum();
    return none;
  }
  const int64_t slots = std::min(tokens, (tokens * k + experts - 1) / experts);
  const ExpertChoice chosen = choose_tokens(x, slots);
  const at::Tensor tokens_on_host = chosen.token.cpu();
  const int64_t most = count_choices(tokens_on_host, tokens).max().item<int64_t>();
  Routing routing = shapes_alone(x, most);
  const at::Tensor expert = at::zeros({tokens, most}, at::kInt),
                   slot = at::full({tokens, most}, -1, at::kInt),
                   source = at::zeros({tokens, most}, at::kLong);  // indices into chosen.weight
  const auto* token = tokens_on_host.const_data_ptr<int32_t>();
  std::vector<int64_t> next(static_cast<size_t>(tokens), 0);
  for (int64_t i = 0; i < tokens_on_host.numel(); ++i) {
    const int64_t at = token[i] * most + next[static_cast<size_t>(token[i])]++;
    expert.mutable_data_ptr<int32_t>()[at] = static_cast<int32_t>(i / slots);
    slot.mutable_data_ptr<int32_t>()[at] = static_cast<int32_t>(i % slots);
    source.mutable_data_ptr<int64_t>()[at] = i;
  }
  routing.expert = copied_to(expert, x.device());
  routing.slot = copied_to(slot, x.device());
  const at::Tensor weight = chosen.weight.reshape({-1})
                                .index_select(0, copied_to(source, x.device()).view({-1}))
                                .view({tokens, most});
  routing.weight = at::where(routing.slot >= 0, weight * scale, at::zeros({}, x.options()));
  routing.count.fill_(slots);
  routing.load_loss = at::zeros({}, x.options());
  routing.z_loss = at::logsumexp(x, 1).square().mean();
  routing.capacity = slots;
  return routing;
}

Selection parse_selection(std::string_view text) {
  return parse_enum<Selection>("moe", "router", text, kSelectionNames);
}
Score parse_score(std::string_view text) {
  return parse_enum<Score>("moe", "score", text, kScoreNames);
}
Normalize parse_normalize(std::string_view text) {
  return parse_enum<Normalize>("moe", "normalize", text, kNormalizeNames);
}
SlotOrder parse_slot_order(std::string_view text) {
  return parse_enum<SlotOrder>("moe", "slot_order", text, kSlotOrderNames);
}
Drop parse_drop(std::string_view text) { return parse_enum<Drop>("moe", "drop", text, kDropNames); }
GroupScore parse_group_score(std::string_view text) {
  return parse_enum<GroupScore>("moe", "group_score", text, kGroupScoreNames);
}
LoadCount parse_load_count(std::string_view text) {
  return parse_enum<LoadCount>("moe", "aux", text, kLoadCountNames);
}
CapacityRule parse_capacity_rule(std::string_view text) {
  return parse_enum<CapacityRule>("moe", "capacity_rule", text, kCapacityRuleNames);
}

}  // namespace dovetail::moe
