#include "dovetail/train/ranks/expert_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/collective.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/train/ranks/expert_load.h"

namespace dovetail::train {
namespace {

constexpr int kMostShadowed = 8;
constexpr int kTrialSteps = 3;   // timed steps of each layout, after a first one
constexpr double kClose = 1.02;  // a slower default within this factor is taken

std::string describe(const moe::ExpertLayout& layout) {
  return fmt::format("r {}, overlap {}, all_to_all {}, {} shadowed", layout.shards, layout.overlap,
                     layout.hierarchical ? "2dh" : "linear", layout.shadowed.size());
}

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
  if (layers_.empty()) return;
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
  const moe::Config& mixture = model.config().moe;
  if (mixture.pad_to_capacity) {
    load_.once_per_rank = false;
    if (mixture.capacity_factor > 0)
      load_.capacity = static_cast<double>(
          moe::capacity(moe::routing_spec(mixture), tokens, mixture.experts, 0));
  }
  if (config_.chooses()) {
    costs_ = config_.costs.empty()
                 ? comm::calibrate(*ranks_->group, static_cast<int>(config_.ranks_per_node),
                                   model.parameters().front().device())
                       .model
                 : comm::read_cost_model(config_.costs);
    // Other replicas measured their own costs. All ranks use rank 0's.
    const nlohmann::json of_all = comm::broadcast_json(world, to_json(*costs_));
    costs_ = comm::parse_cost_model(of_all, "the measured costs");
  }
  choose(std::vector<std::vector<double>>(layers_.size()));
  if (costs_)
    choice_ = fmt::format("experts over {} ranks: {} (costs: {})", load_.ranks,
                          describe(layers_.front().second->layout()), costs_->source);
}

std::array<moe::ExpertLayout, 3> LayoutChoice::candidates(
    const std::vector<double>& choices_of) const {
  const bool known = !choices_of.empty();
  const auto shadowed = [&](int64_t count) {
    return known ? moe::experts_by_load(choices_of, static_cast<int>(count))
                 : std::vector<int64_t>();
  };
  if (!costs_) {
    const moe::ExpertLayout asked{.shards = static_cast<int>(config_.r),
                                  .overlap = static_cast<int>(config_.overlap),
                                  .hierarchical = config_.all_to_all == "2dh",
                                  .shadowed = shadowed(config_.shadow)};
    return {asked, asked, asked};
  }
  moe::LayerLoad load = load_;
  load.choices_of = choices_of;
  const auto is = [](int64_t asked, int value) {
    return asked == ParallelSection::kAuto || asked == value;
  };
  const auto allowed = [&](const moe::LayerPlan& plan) {
    if (modules_ && (plan.shards != load_.cut || plan.shadowed != 0)) return false;
    if (!is(config_.r, plan.shards)) return false;
    if (plan.shards == 0) return !asks_for_moving_rows(config_);
    const bool hierarchical = comm::is_hierarchical(plan.algorithm);
    if (!comm::is_flexible(plan.algorithm) || (hierarchical && !ranks_->nodes)) return false;
    if (config_.all_to_all != "auto" && hierarchical != (config_.all_to_all == "2dh")) return false;
    if (!known) return is(config_.overlap, plan.overlap) && plan.shadowed == 0;
    return is(config_.overlap, plan.overlap) && is(config_.shadow, plan.shadowed);
  };
  const auto is_default = [&](const moe::LayerPlan& plan) {
    return (config_.overlap != ParallelSection::kAuto || plan.overlap == 1) &&
           (config_.r != ParallelSection::kAuto || plan.shards == (modules_ ? load_.cut : 1)) &&
           (config_.shadow != ParallelSection::kAuto || plan.shadowed == 0) &&
           (config_.all_to_all != "auto" || !comm::is_hierarchical(plan.algorithm));
  };
  const int most = config_.shadow > 0 ? static_cast<int>(config_.shadow) : kMostShadowed;
  std::vector<moe::LayerPlan> plans;  // the fastest first
  for (const moe::LayerTime& time : moe::simulate_all(*costs_, load, most))
    if (allowed(time.plan)) plans.push_back(time.plan);
  DOVETAIL_CHECK(!plans.empty(), "no plan fits r {}, overlap {}, {} shadowed", config_.r,
                 config_.overlap, config_.shadow);
  const auto layout = [&](const moe::LayerPlan& plan) {
    return moe::ExpertLayout{.shards = plan.shards,
                             .overlap = plan.overlap,
                             .hierarchical = comm::is_hierarchical(plan.algorithm),
                             .shadowed = shadowed(plan.shadowed)};
  };
  const auto plain = std::ranges::find_if(plans, is_default);
  return {layout(plans.front()), layout(plans[plans.size() > 1 ? 1 : 0]),
          layout(plain == plans.end() ? plans.front() : *plain)};
}

void LayoutChoice::use(const Layouts& layouts) const {
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i].second->set_layout(layouts[i]);
}

void LayoutChoice::choose(const std::vector<std::vector<double>>& loads) {
  std::array<Layouts, 3> all;
  for (const auto& load : loads) {
    const auto of_layer = candidates(load);
    for (size_t i = 0; i < all.size(); ++i) all[i].push_back(of_layer[i]);
  }
  use(all.front());
  if (!costs_ || !config_.costs.empty()) return;
  Trial trial;
  std::vector<std::string> names;
  for (const Layouts& layouts : all) {
    std::string name;
    for (const moe::ExpertLayout& layout : layouts) name += describe(layout) + "; ";
    const auto found = std::ranges::find(names, name);
    trial.plain = static_cast<size_t>(found - names.begin());  // the default is the last
    if (found != names.end()) continue;
    names.push_back(name);
    trial.candidates.push_back(layouts);
  }
  if (names == tried_) {
    use(trial.candidates[taken_]);
    return;
  }
  tried_ = names;
  taken_ = 0;
  if (trial.candidates.size() > 1) trial_ = std::move(trial);
}

std::string LayoutChoice::count_step(double seconds, comm::Group& world) {
  Trial& trial = *trial_;
  if (trial.steps == 0) {
    trial.seconds.push_back(std::numeric_limits<double>::infinity());  // the first step warms up
  } else {
    trial.seconds.back() = std::min(trial.seconds.back(), seconds);
  }
  if (++trial.steps <= kTrialSteps) return "";
  trial.steps = 0;
  if (trial.seconds.size() < trial.candidates.size()) {
    use(trial.candidates[trial.seconds.size()]);
    return "";
  }
  // All ranks go by the times of rank 0.
  const auto times = comm::broadcast_json(world, trial.seconds).get<std::vector<double>>();
  taken_ = static_cast<size_t>(std::ranges::min_element(times) - times.begin());
  if (times[trial.plain] <= kClose * times[taken_]) taken_ = trial.plain;
  use(trial.candidates[taken_]);
  std::string line = "experts over ranks, by the time of a step:";
  for (size_t i = 0; i < times.size(); ++i)
    line += fmt::format(" {:.1f} ms with {}{}", 1e3 * times[i],
                        describe(trial.candidates[i].front()), i == taken_ ? " (taken);" : ";");
  line.pop_back();
  trial_.reset();
  return line;
}

std::string LayoutChoice::end_step(int64_t step, comm::Group& world) {
  const double now = now_seconds(), seconds = now - std::exchange(end_of_step_s_, now);
  if (trial_) return count_step(seconds, world);
  const bool looks = costs_ || config_.shadow != 0;
  if (layers_.empty() || !looks || step % config_.choose_every != 0) return "";
  std::vector<std::vector<double>> loads;
  for (const LayerChoices& load : sum_loads(layers_, world)) loads.push_back(load.count);
  choose(loads);
  return "";
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
    const comm::Group::Traffic of_nodes = ranks_->nodes->traffic();
    now.calls += of_nodes.calls;
    now.bytes_sent += of_nodes.bytes_sent;
    now.waited_s += of_nodes.waited_s;
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
