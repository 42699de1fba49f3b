#include "dovetail/train/ranks/expert_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/comm/collective.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/train/ranks/expert_load.h"

namespace dovetail::train {
namespace {

constexpr int kMostShadowed = 8;

/// Hidden width for the cost model, which assumes two matrices per expert. Experts with three
/// (swiglu) count 1.5 times.
int64_t hidden_of(const models::ModelConfig& model) {
  return model.moe.ffn_width * (mx::up_width(model.activation, 1) + 1) / 2;
}

/// Returns true if a key requires that rows move. A plan with r = 0 moves none.
bool asks_for_moving_rows(const ParallelSection& asked) {
  const ParallelSection none;
  return asked.shadow > 0 || asked.overlap > 1 || asked.all_to_all == "2dh" ||
         asked.dispatch != none.dispatch || asked.combine != none.combine;
}

}  // namespace

LayoutChoice::LayoutChoice(const models::GPT& model, const RunConfig& config, int64_t tokens,
                           at::ScalarType compute, const ExpertParallel& parallel,
                           comm::Group& world)
    : config_(config.parallel), ranks_(parallel.ranks()) {
  if (!ranks_) return;
  layers_ = moe::layers_of(model);
  modules_ =
      std::ranges::any_of(layers_, [](const auto& item) { return item.second->quantized(); });
  load_ = {.ranks = ranks_->placement.ranks,
           .experts = static_cast<int>(ranks_->placement.experts),
           .cut = ranks_->placement.cut,
           .tokens = tokens,
           .width = model.config().width,
           .hidden = hidden_of(model.config()),
           .top_k = static_cast<int>(model.config().moe.k),
           .row_bytes = static_cast<double>(
               comm::row_bytes(ranks_->dispatch.forward, model.config().width, compute)),
           .other_row_bytes = static_cast<double>(
               comm::row_bytes(ranks_->combine.forward, model.config().width, compute)),
           .parameter_bytes = static_cast<double>(c10::elementSize(compute))};
  if (config_.chooses()) {
    costs_ = config_.costs.empty()
                 ? comm::calibrate(*ranks_->group, static_cast<int>(config_.ranks_per_node)).model
                 : comm::read_cost_model(config_.costs);
    // Other replicas measured their own costs. All ranks use rank 0's.
    const nlohmann::json of_all = comm::broadcast_json(world, to_json(*costs_));
    costs_ = comm::parse_cost_model(of_all, "the measured costs");
  }
  const moe::ExpertLayout first = choose({});
  for (const auto& [name, layer] : layers_) layer->set_layout(first);
  if (costs_)
    choice_ = fmt::format(
        "experts over {} ranks: r {}, overlap {}, all_to_all {}, {} shadowed (costs: {})",
        load_.ranks, first.shards, first.overlap, first.hierarchical ? "2dh" : "linear",
        first.shadowed.size(), costs_->source);
}

moe::ExpertLayout LayoutChoice::choose(const std::vector<double>& choices_of) const {
  const bool known = !choices_of.empty();
  if (!costs_) {
    return {.shards = static_cast<int>(config_.r),
            .overlap = static_cast<int>(config_.overlap),
            .hierarchical = config_.all_to_all == "2dh",
            .shadowed = known ? moe::experts_by_load(choices_of, static_cast<int>(config_.shadow))
                              : std::vector<int64_t>()};
  }
  moe::LayerLoad load = load_;
  load.choices_of = choices_of;
  const auto allowed = [&](const moe::LayerPlan& plan) {
    const auto is = [](int64_t asked, int value) {
      return asked == ParallelSection::kAuto || asked == value;
    };
    if (modules_ && (plan.shards != load_.cut || plan.shadowed != 0)) return false;
    if (!is(config_.r, plan.shards)) return false;
    if (plan.shards == 0) return !asks_for_moving_rows(config_);
    const bool hierarchical = comm::is_hierarchical(plan.algorithm);
    if (!comm::is_flexible(plan.algorithm) || (hierarchical && !ranks_->nodes)) return false;
    if (config_.all_to_all != "auto" && hierarchical != (config_.all_to_all == "2dh")) return false;
    if (!known) return is(config_.overlap, plan.overlap) && plan.shadowed == 0;
    return is(config_.overlap, plan.overlap) && is(config_.shadow, plan.shadowed);
  };
  const int most = config_.shadow > 0 ? static_cast<int>(config_.shadow) : kMostShadowed;
  const auto times = moe::simulate_all(*costs_, load, most);
  const auto fastest =
      std::ranges::find_if(times, [&](const moe::LayerTime& time) { return allowed(time.plan); });
  DOVETAIL_CHECK(fastest != times.end(), "no plan fits r {}, overlap {}, {} shadowed", config_.r,
                 config_.overlap, config_.shadow);
  const moe::LayerPlan& plan = fastest->plan;
  return {
      .shards = plan.shards,
      .overlap = plan.overlap,
      .hierarchical = comm::is_hierarchical(plan.algorithm),
      .shadowed = known ? moe::experts_by_load(choices_of, plan.shadowed) : std::vector<int64_t>()};
}

void LayoutChoice::end_step(int64_t step, comm::Group& world) {
  const bool looks = costs_ || config_.shadow != 0;
  if (layers_.empty() || !looks || step % config_.choose_every != 0) return;
  auto layer = layers_.begin();
  for (const LayerChoices& load : sum_loads(layers_, world))
    (layer++)->second->set_layout(choose(load.count));
}

nlohmann::ordered_json LayoutChoice::plans() const {
  auto list = nlohmann::ordered_json::array();
  for (const auto& [name, layer] : layers_) {
    const moe::ExpertLayout& plan = layer->layout();
    list.push_back({{"r", plan.shards},
                    {"overlap", plan.overlap},
                    {"all_to_all", plan.hierarchical ? "2dh" : "linear"},
                    {"shadowed", plan.shadowed}});
  }
  return list;
}

nlohmann::ordered_json LayoutChoice::traffic(int64_t step, comm::Group& world) {
  comm::Group::Traffic now = ranks_->group->all_to_all_traffic();
  if (ranks_->nodes) {
    for (const auto& group : {ranks_->nodes->inside, ranks_->nodes->between}) {
      const comm::Group::Traffic part = group->all_to_all_traffic();
      now.calls += part.calls;
      now.bytes_sent += part.bytes_sent;
      now.waited_s += part.waited_s;
    }
  }
  const std::vector<double> sums =
      sum_over_ranks(world, {static_cast<double>(now.calls - last_.calls),
                             static_cast<double>(now.bytes_sent - last_.bytes_sent),
                             now.waited_s - last_.waited_s});
  const auto steps = static_cast<double>(std::max<int64_t>(step - last_step_, 1)),
             ranks = static_cast<double>(world.size());
  last_ = now;
  last_step_ = step;
  return {{"calls", sums[0] / steps / ranks},
          {"bytes_sent", sums[1] / steps / ranks},
          {"waited_s", sums[2] / steps / ranks}};
}

}  // namespace dovetail::train
