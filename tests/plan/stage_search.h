#pragma once

#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <tuple>

#include "dovetail/plan/model/schedule.h"

namespace dovetail::plan {

/// Finds the minimum time over all plans in Checkmate's stages. In stage t nodes up to t run at
/// most once, in order, and t itself always runs. Any tensor may be freed at any time. The search
/// runs shortest paths through all sets of present tensors. It returns infinity if no plan fits. It
/// is exhaustive, so it suits only a few nodes, and it shares no code with the program.
class StageSearch {
 public:
  explicit StageSearch(const Graph& graph) : graph_(graph) {
    const auto nodes = static_cast<int>(graph.nodes.size());
    std::vector<int> version(graph.tensors.size());
    for (int n = 0; n < nodes; ++n) {
      needs_.emplace_back();
      for (const auto* list : {&graph.nodes[n].inputs, &graph.nodes[n].mutates})
        for (const int t : *list) needs_[n][t] = version[t];
      for (const int t : graph.nodes[n].mutates) ++version[t];
      makes_.push_back(0);
      for (const int t : graph.nodes[n].outputs) makes_[n] |= bit(t);
    }
    for (size_t t = 0; t < graph.tensors.size(); ++t)
      if (resident_at_start(graph.tensors[t].kind)) fixed_ |= bit(static_cast<int>(t));
  }

  double least() {
    using State = std::tuple<int, int, uint64_t>;  // stage, next node, set of present tensors
    std::map<State, double> best;
    std::priority_queue<std::pair<double, State>, std::vector<std::pair<double, State>>,
                        std::greater<>>
        open;
    const auto offer = [&](double time, const State& state) {
      const auto found = best.find(state);
      if (found != best.end() && found->second <= time) return;
      best[state] = time;
      open.emplace(time, state);
    };
    offer(0, {0, 0, fixed_});
    const auto nodes = static_cast<int>(graph_.nodes.size());
    while (!open.empty()) {
      const auto [time, state] = open.top();
      open.pop();
      if (best[state] < time) continue;
      const auto [stage, next, there] = state;
      if (stage == nodes) {
        uint64_t end = 0;
        for (const int t : graph_.final) end |= bit(t);
        if ((there & end) == end) return time;
        continue;
      }
      for (size_t t = 0; t < graph_.tensors.size(); ++t)
        if (const uint64_t one = bit(static_cast<int>(t)); (there & one & ~fixed_) != 0)
          offer(time, {stage, next, there & ~one});
      if (next < stage) offer(time, {stage, next + 1, there});
      if (!may_run(stage, next, there)) continue;
      const auto after = next == stage ? State{stage + 1, 0, there | makes_[next]}
                                       : State{stage, next + 1, there | makes_[next]};
      offer(time + graph_.nodes[next].algorithms[0].time_s, after);
    }
    return std::numeric_limits<double>::infinity();
  }

 private:
  static uint64_t bit(int tensor) { return uint64_t{1} << tensor; }

  bool may_run(int stage, int node, uint64_t there) const {
    const GraphNode& n = graph_.nodes[node];
    if (node < stage && n.runs_once()) return false;
    if ((there & makes_[node]) != 0) return false;
    for (const auto& [tensor, version] : needs_[node]) {
      if ((there & bit(tensor)) == 0) return false;
      int now = 0;  // number of writes in previous stages; no node below this one is running
      for (int m = 0; m < stage; ++m)
        for (const int t : graph_.nodes[m].mutates) now += t == tensor ? 1 : 0;
      if (now != version) return false;
    }
    int64_t bytes = graph_.base_bytes + n.algorithms[0].workspace_bytes;
    for (size_t t = 0; t < graph_.tensors.size(); ++t)
      if (((there | makes_[node]) & bit(static_cast<int>(t))) != 0)
        bytes += graph_.tensors[t].bytes;
    return bytes <= graph_.budget_bytes;
  }

  const Graph& graph_;
  std::vector<std::map<int, int>> needs_;  // tensors and their versions that each node reads
  std::vector<uint64_t> makes_;
  uint64_t fixed_ = 0;
};

/// Plan that runs each node once with its first algorithm and keeps every tensor until its last
/// reader.
inline Plan kept_plan(const Graph& graph) {
  const Scheduler scheduler(graph);
  const Decisions all{.gaps = std::vector<Keep>(scheduler.gaps().size()),
                      .codec = std::vector<int>(scheduler.gaps().size()),
                      .algorithms = std::vector<int>(graph.nodes.size())};
  return scheduler.schedule(all, std::numeric_limits<int64_t>::max() / 8)->plan;
}

}  // namespace dovetail::plan
