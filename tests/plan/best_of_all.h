#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {

/// Enumerates all decisions that the scheduler accepts. Skips decisions whose computation alone
/// takes at least the best time so far.
class EveryDecision {
 public:
  EveryDecision(const Graph& graph, const SolveOptions& options)
      : graph_(graph),
        options_(options),
        scheduler_(graph),
        decisions_{.gaps = std::vector<Keep>(scheduler_.gaps().size()),
                   .codec = std::vector<int>(scheduler_.gaps().size()),
                   .algorithms = std::vector<int>(graph.nodes.size())},
        producer_(graph.tensors.size(), -1),
        runs_again_(graph.nodes.size()) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (const int t : graph.nodes[n].outputs) producer_[t] = static_cast<int>(n);
    algorithm_of(0, 0);
  }

  double best_s() const { return best_s_; }

 private:
  void algorithm_of(size_t node, double computing_s) {
    if (computing_s >= best_s_) return;
    if (node == graph_.nodes.size()) return way_of(0, computing_s);
    const auto& algorithms = graph_.nodes[node].algorithms;
    for (size_t a = 0; a < algorithms.size(); ++a) {
      decisions_.algorithms[node] = static_cast<int>(a);
      algorithm_of(node + 1, computing_s + algorithms[a].time_s);
    }
  }

  void way_of(size_t g, double computing_s) {
    if (computing_s >= best_s_) return;
    if (g == decisions_.gaps.size()) {
      if (const auto made = scheduler_.schedule(decisions_, graph_.budget_bytes))
        best_s_ = std::min(best_s_, made->timeline.makespan_s);
      return;
    }
    const Gap& gap = scheduler_.gaps()[g];
    decisions_.gaps[g] = Keep::kResident;
    way_of(g + 1, computing_s);
    decisions_.gaps[g] = Keep::kHost;
    if (!gap.wraps || options_.across_steps) way_of(g + 1, computing_s);
    if (scheduler_.can_be_recomputed(static_cast<int>(g))) again(g, computing_s);
    decisions_.gaps[g] = Keep::kPacked;
    for (int codec = 0; codec < static_cast<int>(graph_.codecs.size()); ++codec) {
      decisions_.codec[g] = codec;
      const auto bytes = static_cast<double>(graph_.tensors[gap.tensor].bytes);
      const Codec& by = graph_.codecs[codec];
      if (may_be_packed(graph_, gap, codec))
        way_of(g + 1, computing_s + bytes / by.encode_bytes_per_s + bytes / by.decode_bytes_per_s);
    }
    decisions_.codec[g] = 0;
  }

  /// Counts a recomputation of a node. One run yields all outputs of the node and may serve several
  /// gaps.
  void again(size_t g, double computing_s) {
    const int p = producer_[scheduler_.gaps()[g].tensor];
    if (runs_again_[p]++ == 0)
      computing_s += graph_.nodes[p].algorithms[decisions_.algorithms[p]].time_s;
    for (const Keep keep : {Keep::kAgain, Keep::kAgainEarly}) {
      decisions_.gaps[g] = keep;
      way_of(g + 1, computing_s);
    }
    --runs_again_[p];
  }

  const Graph& graph_;
  const SolveOptions& options_;
  const Scheduler scheduler_;
  Decisions decisions_;
  std::vector<int> producer_, runs_again_;
  double best_s_ = std::numeric_limits<double>::infinity();
};

/// Returns the minimum time over all decisions that the scheduler accepts. Starts on the host are
/// included only if `options` allow them.
inline double best_of_all(const Graph& graph, const SolveOptions& options = {}) {
  return EveryDecision(graph, options).best_s();
}

}  // namespace dovetail::plan
