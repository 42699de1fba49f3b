#include "dovetail/plan/run/profile.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/median.h"
#include "dovetail/plan/run/executor.h"

namespace dovetail::plan {
namespace {

/// Returns the plan of `keep_all`, in which each node runs by all its listed algorithms in
/// sequence. A node without listed algorithms runs by its first.
Plan with_each_algorithm(const Graph& graph, const std::vector<std::vector<int>>& algorithms) {
  const Plan once = keep_all(graph);
  Plan plan;
  for (Action action : once.actions) {
    if (action.op != Op::kCompute || algorithms[action.node].empty()) {
      plan.actions.push_back(action);
      continue;
    }
    for (const int algorithm : algorithms[action.node]) {
      if (algorithm != algorithms[action.node].front())
        for (const int t : graph.nodes[action.node].outputs)
          plan.actions.push_back({.op = Op::kFree, .tensor = t});
      action.algorithm = algorithm;
      plan.actions.push_back(action);
    }
  }
  return plan;
}

}  // namespace

Plan keep_all(const Graph& graph) {
  std::vector<int> last(graph.tensors.size(), -1);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (const auto* list :
         {&graph.nodes[n].inputs, &graph.nodes[n].outputs, &graph.nodes[n].mutates})
      for (const int t : *list) last[graph.root(t)] = static_cast<int>(n);
  for (const int t : graph.final) last[graph.root(t)] = -1;
  Plan plan;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    plan.actions.push_back({.op = Op::kCompute, .node = static_cast<int>(n)});
    for (size_t t = 0; t < last.size(); ++t)
      if (last[t] == static_cast<int>(n) && !resident_at_start(graph.tensors[t].kind))
        plan.actions.push_back({.op = Op::kFree, .tensor = static_cast<int>(t)});
  }
  return plan;
}

void set_times(Graph& graph, const Plan& plan, std::span<const Executor::Run> runs) {
  std::map<std::pair<int, int>, std::vector<double>> seconds;  // per node and algorithm
  for (size_t a = 0; a < plan.actions.size(); ++a)
    if (plan.actions[a].op == Op::kCompute)
      for (const Executor::Run& run : runs)
        seconds[{plan.actions[a].node, plan.actions[a].algorithm}].push_back(
            run.actions[a].end_s - run.actions[a].start_s);
  std::map<int, double> factor;  // per node
  for (auto& [what, all] : seconds) {
    double& time_s = graph.nodes[what.first].algorithms[what.second].time_s;
    const double now_s = median(std::move(all));
    if (time_s > 0) factor.emplace(what.first, now_s / time_s);
    time_s = now_s;
  }
  for (const auto& [node, by] : factor) {
    auto& algorithms = graph.nodes[node].algorithms;
    for (size_t a = 0; a < algorithms.size(); ++a)
      if (!seconds.contains({node, static_cast<int>(a)})) algorithms[a].time_s *= by;
  }
}

void limit_bandwidth(Graph& graph, const Plan& plan, std::span<const Executor::Run> runs) {
  const auto limit = [&](double& bytes_per_s, Op op) {
    std::vector<double> rates;
    for (const Executor::Run& run : runs) {
      double bytes = 0, seconds = 0;
      for (size_t a = 0; a < plan.actions.size(); ++a) {
        if (plan.actions[a].op != op) continue;
        bytes += static_cast<double>(graph.tensors[plan.actions[a].tensor].bytes);
        seconds += run.actions[a].end_s - run.actions[a].start_s;
      }
      if (seconds > 0) rates.push_back(bytes / seconds);
    }
    if (!rates.empty()) bytes_per_s = std::min(bytes_per_s, median(std::move(rates)));
  };
  limit(graph.bandwidth.to_host, Op::kOffload);
  limit(graph.bandwidth.to_device, Op::kPrefetch);
}

Profile profile_nodes(const CapturedStep& step, StepGraph& graph, int rounds, ProfileCache& cache) {
  DOVETAIL_CHECK(rounds > 0, "a profile takes at least one round");
  Profile out;
  std::vector<std::vector<int>> missing(graph.nodes.size());
  const auto key = [&](size_t n, size_t a) {
    const auto what = key_of(run_of(step, graph.nodes[n], static_cast<int>(a)).operations);
    return what ? "time of " + *what : "";
  };
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    auto& algorithms = graph.graph.nodes[n].algorithms;
    for (size_t a = 0; a < algorithms.size(); ++a) {
      const std::string what = key(n, a);
      const auto known = what.empty() ? std::nullopt : cache.find(what);
      if (known) algorithms[a].time_s = known->get<double>();
      if (!known) missing[n].push_back(static_cast<int>(a));
      ++(known ? out.known : out.measured);
    }
  }
  if (out.measured == 0) return out;
  StepGraph unlimited = graph;
  unlimited.graph.budget_bytes = std::numeric_limits<int64_t>::max();
  const Plan plan = with_each_algorithm(graph.graph, missing);
  std::vector<Executor::Run> runs;
  {
    Executor executor(step, unlimited, plan, {.mixed_algorithms = true});
    executor.run();
    for (int round = 0; round < rounds; ++round) runs.push_back(executor.run());
  }
  set_times(unlimited.graph, plan, runs);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (const int a : missing[n]) {
      const double time_s = unlimited.graph.nodes[n].algorithms[a].time_s;
      graph.graph.nodes[n].algorithms[a].time_s = time_s;
      if (const std::string what = key(n, a); !what.empty()) cache.put(what, time_s);
    }
  return out;
}

}  // namespace dovetail::plan
