#include "dovetail/moe/config.h"

#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/moe/names.h"

namespace dovetail::moe {

namespace {

template <size_t N>
std::vector<std::string> strings(const std::array<std::string_view, N>& names) {
  return {names.begin(), names.end()};
}

}  // namespace

void Config::describe(Section& s) {
  s.value("experts", experts, "Feed-forwards of a block of which each token takes k; 0: a dense model").range(0, 65536);
  s.value("k", k, "Experts a token goes to").range(1, 65536);
  s.value("ffn_width", ffn_width, "Hidden elements of an expert; 0: model.ffn_width").range(0, 1 << 24);
  s.value("shared_experts", shared_experts, "Experts that every token goes to besides, as one feed-forward as wide")
      .range(0, 65536);
  s.value("every", every, "The last of every so many blocks has experts, the others are dense").range(1, 10000);
  s.value("score", score, "What a token's logits become: softmax over the experts, or sigmoid of each")
      .choices(strings(kScoreNames));
  s.value("normalize", normalize,
          "The k weights add to 1 over all choices (before dropping), over those not dropped (after), or are the "
          "scores (none); with k = 1 they are the scores")
      .choices(strings(kNormalizeNames));
  s.value("scale", scale, "Factor of the weights").above(0);
  s.value("num_groups", num_groups, "Equal groups of neighbouring experts").range(1, 65536);
  s.value("top_groups", top_groups, "A token's experts lie in so many groups").range(1, 65536);
  s.value("group_score", group_score, "By which groups are chosen: the sum of their two best scores, or the best")
      .choices(strings(kGroupScoreNames));
  s.value("drop", drop,
          "What happens beyond an expert's capacity: the last choices are dropped, those of the lowest "
          "score, or nothing")
      .choices(strings(kDropNames));
  s.value("slot_order", slot_order, "Who comes first: all first choices, then all second (choice), or token by token")
      .choices(strings(kSlotOrderNames));
  s.value("batch_prioritized", batch_prioritized, "Tokens of the highest scores come first");
  s.value("capacity_rule", capacity_rule, "The system whose rule gives the capacity: docs/models.md lists them")
      .choices(strings(kCapacityRuleNames));
  s.value("capacity_factor", capacity_factor,
          "Slots of an expert over an even share; tutel: 0 as many as needed, below 0 as needed up to that factor");
  s.value("load_loss", load_loss, "Coefficient of the load-balancing loss, 1 at perfect balance").range(0, 1e6);
  s.value("load_count", load_count, "The choices that it counts").choices(strings(kLoadCountNames));
  s.value("z_loss", z_loss, "Coefficient of the mean squared log-sum-exp of the router's logits").range(0, 1e6);
}

bool has_experts(const Config& config, int64_t index) {
  return config.experts > 0 && index % config.every == config.every - 1;
}

Config resolve(const Config& config, int64_t width) {
  Config c = config;
  if (c.experts == 0) {
    user_check(c == Config{},
               "model.moe describes experts, but model.moe.experts = 0: a dense model; give their number");
    return c;
  }
  if (c.ffn_width == 0) c.ffn_width = width;
  check_spec("model.moe", routing_spec(c), c.experts);
  const Config defaults;
  user_check(
      c.drop != "none" || (c.slot_order == defaults.slot_order && !c.batch_prioritized &&
                           c.capacity_rule == defaults.capacity_rule && c.capacity_factor == defaults.capacity_factor),
      "model.moe.drop = \"none\": there is no capacity, so slot_order, batch_prioritized, capacity_rule and "
      "capacity_factor do nothing; leave them out or say what is dropped");
  user_check(c.num_groups > 1 || c.group_score == defaults.group_score,
             "model.moe.group_score does nothing with num_groups = 1; leave it out");
  return c;
}

RoutingSpec routing_spec(const Config& config) {
  return {.k = config.k,
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
          .load_count = parse_load_count(config.load_count)};
}

}  // namespace dovetail::moe
