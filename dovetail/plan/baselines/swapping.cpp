#include "dovetail/plan/baselines/swapping.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string_view>
#include <utility>

#include "dovetail/base/trace.h"
#include "dovetail/plan/baselines/chen.h"

namespace dovetail::plan {
namespace {

bool is_convolution(const GraphNode& node) { return node.name.starts_with("aten::convolution"); }
bool is_product(const GraphNode& node) {
  constexpr std::string_view kNames[] = {"aten::mm", "aten::addmm", "aten::bmm", "aten::linear"};
  return std::find(std::begin(kNames), std::end(kNames), node.name) != std::end(kNames);
}

/// A graph, its gaps between forward and backward, and the fastest plan so far of one strategy.
class Rule {
 public:
  Rule(const Graph& graph, std::string name) : graph_(graph), scheduler_(graph) {
    found_.name = std::move(name);
    producer_.assign(graph.tensors.size(), -1);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (const int t : graph.nodes[n].outputs) producer_[graph.root(t)] = static_cast<int>(n);
    const int forward = forward_nodes(graph);
    for (size_t g = 0; g < scheduler_.gaps().size(); ++g) {
      const Gap& gap = scheduler_.gaps()[g];
      if (!gap.wraps && gap.from >= 0 && gap.from < forward && gap.to >= forward &&
          graph.tensors[gap.tensor].kind == TensorKind::kActivation)
        across_.push_back(static_cast<int>(g));
    }
  }

  const Graph& graph() const { return graph_; }
  /// Gaps of activations between forward and backward, by last use in forward.
  const std::vector<int>& across() const { return across_; }
  const Gap& gap(int g) const { return scheduler_.gaps()[g]; }
  bool can_be_recomputed(int g) const { return scheduler_.can_be_recomputed(g); }
  int producer(int tensor) const { return producer_[tensor]; }

  /// Calls `apply` with decisions that keep everything, for both choices of algorithms.
  void for_both(const std::function<void(Decisions)>& apply) {
    const double started_s = now_seconds();
    for (const Seen seen : {Seen::kLeastWorkspace, Seen::kFastest})
      apply({.gaps = std::vector<Keep>(scheduler_.gaps().size(), Keep::kResident),
             .codec = std::vector<int>(scheduler_.gaps().size()),
             .algorithms = seen_as(graph_, seen).algorithms});
    found_.seconds = now_seconds() - started_s;
  }
  bool fits(const Decisions& decisions) const {
    return scheduler_.schedule(decisions, graph_.budget_bytes).has_value();
  }
  void offer(const Decisions& decisions) {
    std::optional<Plan> plan = with_auto(graph_, decisions);
    if (!plan) return;
    const double time_s = check(graph_, *plan).makespan_s;
    if (found_.plan && time_s >= found_.time_s) return;
    found_.plan = std::move(plan);
    found_.time_s = time_s;
  }
  Baseline result() { return std::move(found_); }

 private:
  const Graph& graph_;
  const Scheduler scheduler_;
  std::vector<int> across_, producer_;
  Baseline found_;
};

/// Capuchin's choices for one set of algorithms.
class Capuchin {
 public:
  Capuchin(Rule& rule, Decisions decisions) : rule_(rule), decisions_(std::move(decisions)) {
    const Graph& graph = rule.graph();
    double now_s = 0;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      starts_s_.push_back(now_s);
      now_s += time_s(static_cast<int>(n));
    }
    starts_s_.push_back(now_s);
    left_ = rule.across();
    std::stable_sort(left_.begin(), left_.end(),
                     [&](int a, int b) { return free_s(a) > free_s(b); });
  }

  void run() {
    while (!rule_.fits(decisions_)) {
      if (left_.empty()) return;
      const int swapped = left_.front();
      int again = -1;
      for (const int g : left_)
        if (rule_.can_be_recomputed(g) && (again < 0 || saving(g) > saving(again))) again = g;
      const double missing_s = std::max(0.0, -free_s(swapped));
      const bool recompute =
          missing_s > 0 && again >= 0 && again_s(rule_.gap(again).tensor) < missing_s;
      const int chosen = recompute ? again : swapped;
      decisions_.gaps[chosen] = recompute ? Keep::kAgain : Keep::kHost;
      left_.erase(std::find(left_.begin(), left_.end(), chosen));
    }
    rule_.offer(decisions_);
  }

 private:
  double time_s(int node) const {
    return rule_.graph().nodes[node].algorithms[decisions_.algorithms[node]].time_s;
  }
  double bytes(int tensor) const {
    return static_cast<double>(rule_.graph().tensors[tensor].bytes);
  }
  /// Time between the uses, minus the time of both copies.
  double free_s(int g) const {
    const Gap& gap = rule_.gap(g);
    const Bandwidth& bandwidth = rule_.graph().bandwidth;
    return starts_s_[gap.to] - starts_s_[gap.from + 1] -
           bytes(gap.tensor) * (1 / bandwidth.to_host + 1 / bandwidth.to_device);
  }
  /// Time to recompute a tensor, with its inputs that are recomputed, too.
  double again_s(int tensor) const {
    const int node = rule_.producer(tensor);
    double out = time_s(node);
    for (const int input : rule_.graph().nodes[node].inputs) {
      const int root = rule_.graph().root(input);
      for (const int g : rule_.across())
        if (rule_.gap(g).tensor == root && decisions_.gaps[g] == Keep::kAgain) out += again_s(root);
    }
    return out;
  }
  /// Bytes saved per second of recomputation.
  double saving(int g) const {
    const int tensor = rule_.gap(g).tensor;
    return bytes(tensor) / std::max(again_s(tensor), 1e-12);
  }

  Rule& rule_;
  Decisions decisions_;
  std::vector<double> starts_s_;  // start of each node if everything is kept, and the end
  std::vector<int> left_;         // gaps without a decision, by descending free time
};

}  // namespace

std::optional<Plan> with_auto(const Graph& graph, Decisions decisions) {
  const Scheduler scheduler(graph);
  auto schedule = scheduler.schedule(decisions, graph.budget_bytes);
  if (!schedule) return {};
  Plan chosen = choose_algorithms(graph, std::move(schedule->plan), decisions.algorithms);
  decisions.algorithms = decisions_of(graph, chosen).algorithms;
  schedule = scheduler.schedule(decisions, graph.budget_bytes);
  if (schedule && schedule->timeline.makespan_s < check(graph, chosen).makespan_s)
    return std::move(schedule->plan);
  return chosen;
}

Baseline vdnn(const Graph& graph) {
  Rule rule(graph, "vDNN");
  rule.for_both([&](const Decisions& kept) {
    rule.offer(kept);
    for (const bool all : {false, true}) {
      Decisions decisions = kept;
      for (const int g : rule.across())
        if (all || is_convolution(graph.nodes[rule.gap(g).from])) decisions.gaps[g] = Keep::kHost;
      rule.offer(decisions);
    }
  });
  return rule.result();
}

Baseline superneurons(const Graph& graph) {
  Rule rule(graph, "SuperNeurons");
  // Gaps in the order in which forward computes their tensors.
  std::vector<int> order;
  for (const int g : rule.across())
    if (!is_product(graph.nodes[rule.producer(rule.gap(g).tensor)])) order.push_back(g);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return rule.producer(rule.gap(a).tensor) < rule.producer(rule.gap(b).tensor);
  });
  rule.for_both([&](const Decisions& kept) {
    for (const Keep again : {Keep::kAgainEarly, Keep::kAgain}) {
      Decisions decisions = kept;
      size_t evicted = 0;
      while (!rule.fits(decisions) && evicted < order.size()) {
        const int g = order[evicted++];
        const bool moved = is_convolution(graph.nodes[rule.producer(rule.gap(g).tensor)]) ||
                           !rule.can_be_recomputed(g);
        decisions.gaps[g] = moved ? Keep::kHost : again;
      }
      rule.offer(decisions);
    }
  });
  return rule.result();
}

Baseline capuchin(const Graph& graph) {
  Rule rule(graph, "Capuchin");
  rule.for_both([&](const Decisions& kept) { Capuchin(rule, kept).run(); });
  return rule.result();
}

}  // namespace dovetail::plan
