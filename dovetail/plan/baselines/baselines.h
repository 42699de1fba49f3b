#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/plan/baselines/chen.h"
#include "dovetail/plan/model/check.h"
#include "dovetail/plan/model/schedule.h"
#include "dovetail/plan/solve/milp.h"

namespace dovetail::plan {

const Algorithm& least_workspace_algorithm(const GraphNode& node);
std::vector<int> least_workspace_algorithms(const Graph& graph);

/// The step with the algorithm of least workspace alone for each node: what planners see that do
/// not choose.
Graph with_least_workspace(const Graph& graph);

/// A plan of `with_least_workspace(graph)` as one of `graph`, with algorithms chosen after planning
/// (the `Auto` of MO-SOS): one run after the other in the order of the plan, each gets the fastest
/// algorithm by which the plan still fits the budget and is no slower. The choice of an early run
/// can take room from a later copy; nothing is undone.
Plan choose_algorithms(const Graph& graph, const Plan& plan);

/// The decisions that a plan shows: what became of each gap, and of each node the algorithm of its
/// first run. The schedule of these decisions may differ from the plan, which can do what no
/// decisions say: a search may begin there.
Decisions decisions_of(const Graph& graph, const Plan& plan);

/// A plan of a published strategy, and how long it took to find.
struct Baseline {
  std::string name;
  std::optional<Plan> plan;  ///< one that `check` accepts; nothing: it found none within the budget
  double seconds = 0;        ///< of solving
  double time_s = 0;         ///< what the strategy itself expects of its plan: the time of all runs
  double bound_s = 0;        ///< proven of every plan of its kind, or 0
};

/// Chen's strategies of all runs once or twice. With sqrt(n) there is one plan, which fits or does
/// not; greedy is tried with segments from 0 to three times of what sqrt(n) takes, in steps of a
/// twentieth, and the fastest that fits counts.
Baseline chen_sqrt(const Graph& graph, Candidates candidates, const ChenOptions& options = {});
Baseline chen_greedy(const Graph& graph, Candidates candidates, const ChenOptions& options = {});

/// Checkmate's program, begun from the fastest of Chen's plans and, where that finds one, of a
/// greedy search of recomputation alone; and its rounding.
Baseline checkmate(const Graph& graph, const MilpOptions& options);
Baseline checkmate_rounded(const Graph& graph, const MilpOptions& options);

}  // namespace dovetail::plan
