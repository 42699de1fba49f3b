#include "dovetail/moe/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/moe/names.h"

namespace dovetail::moe {

namespace {

template <size_t N>
std::vector<std::string> strings(const std::array<std::string_view, N>& names) {
  return {names.begin(), names.end()};
}

Selection selection(const Config& c) {
  const auto found = std::find(kSelectionNames.begin(), kSelectionNames.end(), c.router);
  return found == kSelectionNames.end() ? Selection::kTopK
                                        : static_cast<Selection>(found - kSelectionNames.begin());
}

/// Returns true if the router needs a loss to balance its load. Other routers balance it by
/// construction.
bool learns_balance(const Config& c) { return c.router == "top_k" || c.router == "noisy_top_k"; }

void check_router(Config& c) {
  const Config defaults;
  const auto refuse = [&](bool used, const char* key) {
    user_check(!used, "model.moe.{} does nothing with router = \"{}\"; leave it out", key,
               c.router);
  };
  if (c.router != "noisy_top_k") {
    refuse(c.importance_loss > 0, "importance_loss");
    refuse(c.smooth_load_loss > 0, "smooth_load_loss");
  }
  if (learns_balance(c)) {
    if (c.load_loss < 0) c.load_loss = 0.01;
    if (c.load_loss > 0 && c.load_scope == defaults.load_scope) c.load_scope = "global_batch";
    user_check(c.load_loss > 0 ||
                   (c.load_scope == defaults.load_scope && c.load_count == defaults.load_count),
               "model.moe.load_scope and load_count do nothing with load_loss = 0; leave them out");
    user_check(c.smooth_load_loss == 0 || (c.num_groups == 1 && c.bias_update_rate == 0),
               "model.moe.smooth_load_loss knows of a choice by noisy logits alone; leave out "
               "num_groups and bias_update_rate");
    return;
  }
  refuse(c.load_loss > 0, "load_loss");
  refuse(c.load_count != defaults.load_count, "load_count");
  refuse(c.load_scope != defaults.load_scope, "load_scope");
  refuse(c.bias_update_rate > 0, "bias_update_rate");
  refuse(c.num_groups > 1 || c.top_groups > 1, "num_groups");
  c.load_loss = 0;
  if (c.router != "expert_choice" && c.router != "hash") return;
  refuse(c.score != defaults.score, "score");
  refuse(c.normalize != defaults.normalize, "normalize");
  refuse(c.second_expert != defaults.second_expert, "second_expert");
  if (c.router == "hash") {
    refuse(c.z_loss > 0, "z_loss");
    refuse(c.batch_prioritized, "batch_prioritized");
    user_check(c.drop != "probability",
               "model.moe.drop = \"probability\" drops by scores, which router = \"hash\" has none "
               "of; use \"position\"");
  } else {
    user_check(c.drop == "none",
               "model.moe.drop = \"{}\": with router = \"expert_choice\" experts take tokens and "
               "none has too many; leave it out",
               c.drop);
  }
}

void check_second_expert(const Config& c) {
  user_check(
      c.second_expert == "always" || c.k == 2,
      "model.moe.second_expert = \"random\" drops the second of two experts, but k = {}; use k = 2",
      c.k);
  user_check(!c.draw_frees_slot || (c.second_expert == "random" && c.drop != "none"),
             "model.moe.draw_frees_slot does nothing without second_expert = \"random\" and a "
             "capacity (drop); leave it out");
}

}  // namespace

void Config::describe(Section& s) {
  s.value("experts", experts,
          "Number of experts in a block. Each token uses k of them. 0: a dense model")
      .range(0, 65536);
  s.value("router", router,
          "Method that chooses a token's experts. docs/models.md describes each method")
      .choices(strings(kRouterNames));
  s.value("k", k, "Number of experts that process each token").range(1, 65536);
  s.value("ffn_width", ffn_width, "Hidden elements of an expert; 0: model.ffn_width")
      .range(0, 1 << 24);
  s.value("shared_experts", shared_experts,
          "Additional experts that process every token. They form one feed-forward of their total "
          "width")
      .range(0, 65536);
  s.value("every", every,
          "Interval of blocks with experts. The last block of each interval has experts, the "
          "others are dense")
      .range(1, 10000);
  s.value("score", score,
          "Function of a token's logits: softmax over the experts, or sigmoid of each logit")
      .choices(strings(kScoreNames));
  s.value("normalize", normalize,
          "Normalization of a token's k weights. before: all choices sum to 1, before dropping. "
          "after: choices that are not dropped sum to 1. none: weights are the scores. With k = 1 "
          "weights are always the scores")
      .choices(strings(kNormalizeNames));
  s.value("scale", scale, "Factor that multiplies the weights").above(0);
  s.value("num_groups", num_groups, "Number of equal groups of neighbouring experts")
      .range(1, 65536);
  s.value("top_groups", top_groups, "Number of groups that a token's experts come from")
      .range(1, 65536);
  s.value("group_score", group_score,
          "Score of a group: the sum of its two best scores (top2), or its best score (max)")
      .choices(strings(kGroupScoreNames));
  s.value("drop", drop,
          "Choices to drop beyond an expert's capacity: the last ones (position), the ones with "
          "the lowest scores (probability), or none")
      .choices(strings(kDropNames));
  s.value("slot_order", slot_order,
          "Order in which choices get slots: all first choices, then all second choices (choice), "
          "or token by token (token)")
      .choices(strings(kSlotOrderNames));
  s.value("batch_prioritized", batch_prioritized,
          "Give slots to the tokens with the highest scores first");
  s.value("capacity_rule", capacity_rule,
          "System whose rule gives the capacity. docs/models.md lists the rules")
      .choices(strings(kCapacityRuleNames));
  s.value("capacity_factor", capacity_factor,
          "Slots of an expert, divided by its even share of the choices. tutel: 0 gives as many "
          "slots as needed, a negative factor limits them to its magnitude");
  s.value("eval_capacity_factor", eval_capacity_factor,
          "Capacity factor of validation losses, by the same capacity_rule. 0: no capacity. "
          "Decoding and multiple-choice tasks never have a capacity")
      .range(0, 1e6);
  s.value("pad_to_capacity", pad_to_capacity,
          "Pad each expert's rows with zeros to its capacity. Sizes are then known in advance, and "
          "ranks exchange only rows. false: keep the actual number of rows (dropless). Results are "
          "the same");
  s.value("second_expert", second_expert,
          "Second expert in training with k = 2. always: used. random: dropped where twice its "
          "weight is below a random number (GShard)")
      .choices({"always", "random"});
  s.value("draw_frees_slot", draw_frees_slot,
          "A second expert that second_expert drops leaves its slot to the next token");
  s.value("bias_update_rate", bias_update_rate,
          "Change of each expert's selection bias after each step, towards an even load "
          "(DeepSeek-V3: 0.001)")
      .range(0, 1e6);
  s.value("load_loss", load_loss,
          "Coefficient of the load-balancing loss of top_k and noisy_top_k. The loss is 1 at "
          "perfect balance. Below 0: 0.01 for these two routers, none for the others")
      .range(-1, 1e6);
  s.value("load_count", load_count, "Choices that the load-balancing loss counts")
      .choices(strings(kLoadCountNames));
  s.value("load_scope", load_scope,
          "Tokens over which the loss balances the load. micro_batch: the micro-batch of each "
          "rank. sequence: each sequence (DeepSeek-V3). global_batch: all ranks and the step's "
          "micro-batches so far (Qiu et al. 2025). auto: global_batch, or sequence if "
          "train.micro_batch divides a batch, so that ranks do not change the loss")
      .choices(strings(kLoadScopeNames));
  s.value("importance_loss", importance_loss,
          "Coefficient of the squared variation of the experts' summed weights (noisy_top_k)")
      .range(0, 1e6);
  s.value("smooth_load_loss", smooth_load_loss,
          "Coefficient of the squared variation of the experts' expected loads (noisy_top_k)")
      .range(0, 1e6);
  s.value("z_loss", z_loss, "Coefficient of the mean squared log-sum-exp of the router's logits")
      .range(0, 1e6);
}

bool has_experts(const Config& config, int64_t index) {
  return config.experts > 0 && index % config.every == config.every - 1;
}

Config resolve(const Config& config, int64_t width) {
  Config c = config;
  if (c.experts == 0) {
    if (c.load_scope != Config().load_scope)
      throw UserError(
          fmt::format("model.moe.load_scope = \"{}\" does nothing with model.moe.experts = 0",
                      c.load_scope),
          "leave it out; version 0.1 wrote it into the config.toml of each run");
    user_check(
        c == Config{},
        "model.moe describes experts, but model.moe.experts = 0: a dense model; give their number");
    return c;
  }
  if (c.ffn_width == 0) c.ffn_width = width;
  check_router(c);
  check_spec("model.moe", routing_spec(c), c.experts);
  const Config defaults;
  user_check(c.drop != "none" ||
                 (c.slot_order == defaults.slot_order && !c.batch_prioritized &&
                  c.capacity_rule == defaults.capacity_rule &&
                  c.capacity_factor == defaults.capacity_factor && c.eval_capacity_factor == 0),
             "model.moe.drop = \"none\" has no capacity. These keys then do nothing: slot_order, "
             "batch_prioritized, capacity_rule, capacity_factor, eval_capacity_factor. Leave them "
             "out or set drop");
  user_check(c.drop != "none" || !c.pad_to_capacity,
             "model.moe.pad_to_capacity needs a capacity, but model.moe.drop = \"none\" has none; "
             "say what is dropped");
  user_check(
      c.drop != "probability" || (c.slot_order == defaults.slot_order && !c.batch_prioritized),
      "model.moe.drop = \"probability\" drops by scores: slot_order and batch_prioritized do "
      "nothing; leave them out");
  check_second_expert(c);
  user_check(c.num_groups > 1 || c.group_score == defaults.group_score,
             "model.moe.group_score does nothing with num_groups = 1; leave it out");
  user_check(c.num_groups == 1 || c.num_groups > c.top_groups,
             "model.moe.num_groups = {} and top_groups = {} allow all groups, so they do nothing; "
             "leave them out",
             c.num_groups, c.top_groups);
  user_check(c.k > 1 || c.normalize != "after",
             "model.moe.normalize = \"after\" does nothing with k = 1, whose weights are the "
             "scores; leave it out");
  return c;
}

void forget_unread_scope(Config& config) {
  const bool read = config.experts > 0 && learns_balance(config) && config.load_loss != 0;
  if (!read && config.load_scope == "micro_batch") config.load_scope = Config().load_scope;
}

std::string reads_later_tokens(const Config& config) {
  if (config.experts == 0) return {};
  if (config.router == "expert_choice") return "router = \"expert_choice\"";
  return config.eval_capacity_factor > 0
             ? fmt::format("eval_capacity_factor = {}", config.eval_capacity_factor)
             : "";
}

void check_decodes(const Config& config) {
  if (config.experts == 0 || config.router != "expert_choice") return;
  throw UserError(
      "model.moe.router = \"expert_choice\" lets experts choose among all tokens, also later ones. "
      "So no text can be decoded token by token",
      "train with a router that looks at one token, such as \"top_k\" or \"sinkhorn\"");
}

int64_t router_matrices(const Config& config) {
  return config.router == "hash" ? 0 : config.router == "noisy_top_k" ? 2 : 1;
}

RoutingSpec routing_spec(const Config& config) {
  return {.k = config.k,
          .selection = selection(config),
          .score = parse_score(config.score),
          .normalize = parse_normalize(config.normalize),
          .scale = config.scale,
          .slot_order = parse_slot_order(config.slot_order),
          .batch_prioritized = config.batch_prioritized,
          .drop = parse_drop(config.drop),
          .capacity_rule = parse_capacity_rule(config.capacity_rule),
          .capacity_factor = config.capacity_factor,
          .groups = config.num_groups,
          .top_groups = config.top_groups,
          .group_score = parse_group_score(config.group_score),
          .load_count = parse_load_count(config.load_count),
          .draw_frees_slot = config.draw_frees_slot};
}

}  // namespace dovetail::moe
