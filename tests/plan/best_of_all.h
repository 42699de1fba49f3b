#pragma once

#include <algorithm>
#include <functional>
#include <limits>

#include "dovetail/plan/solve.h"

namespace dovetail::plan {

/// The least time over all decisions that the scheduler can be given; without what starts on the host if `options` do
/// not allow that.
inline double best_of_all(const Graph& graph, const SolveOptions& options = {}) {
  const Scheduler scheduler(graph);
  Decisions decisions{.gaps = std::vector<Keep>(scheduler.gaps().size()),
                      .codec = std::vector<int>(scheduler.gaps().size()),
                      .algorithms = std::vector<int>(graph.nodes.size())};
  double best = std::numeric_limits<double>::infinity();
  std::function<void(size_t)> each = [&](size_t i) {
    if (i < decisions.algorithms.size()) {
      for (size_t a = 0; a < graph.nodes[i].algorithms.size(); ++a) {
        decisions.algorithms[i] = static_cast<int>(a);
        each(i + 1);
      }
      return;
    }
    const size_t g = i - decisions.algorithms.size();
    if (g == decisions.gaps.size()) {
      if (const auto made = scheduler.schedule(decisions, graph.budget_bytes))
        best = std::min(best, made->timeline.makespan_s);
      return;
    }
    for (const Keep keep : {Keep::kResident, Keep::kHost, Keep::kAgain, Keep::kAgainEarly, Keep::kPacked}) {
      if ((keep == Keep::kAgain || keep == Keep::kAgainEarly) && !scheduler.can_be_made_again(static_cast<int>(g)))
        continue;
      if (keep == Keep::kHost && scheduler.gaps()[g].wraps && !options.across_steps) continue;
      decisions.gaps[g] = keep;
      decisions.codec[g] = 0;
      if (keep != Keep::kPacked) each(i + 1);
      for (int codec = 0; codec < static_cast<int>(graph.codecs.size()) && keep == Keep::kPacked; ++codec) {
        decisions.codec[g] = codec;
        if (may_be_packed(graph, scheduler.gaps()[g], codec)) each(i + 1);
      }
    }
  };
  each(0);
  return best;
}

}  // namespace dovetail::plan
