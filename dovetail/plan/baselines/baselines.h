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

/// Returns the graph with only the minimum-workspace algorithm of each node. It is the input of
/// planners that do not choose algorithms.
Graph with_least_workspace(const Graph& graph);

/// Turns a plan of `with_least_workspace(graph)` into a plan of `graph` with algorithms chosen
/// after planning (the `Auto` of MO-SOS). Runs are visited one by one in plan order. Each gets the
/// fastest algorithm with which the plan still fits the budget and is no slower. A choice is never
/// undone, even if it takes memory that a later copy needs.
Plan choose_algorithms(const Graph& graph, const Plan& plan);

/// Recovers the decisions that a plan shows. They are the algorithm of each node's first run, and
/// what happens to a tensor in each gap between two uses. A schedule of these decisions may differ
/// from the plan, because decisions cannot express every plan. A search may start from them.
Decisions decisions_of(const Graph& graph, const Plan& plan);

/// Plan of a published strategy, and the time to find it.
struct Baseline {
  std::string name;
  std::optional<Plan> plan;  ///< accepted by `check`; nullopt if none within the budget was found
  double seconds = 0;        ///< solve time
  double time_s = 0;         ///< step time that the strategy expects: the sum of all runs
  double bound_s = 0;        ///< proven lower bound on the time of any plan of this kind, or 0
};

/// Strategies of Chen et al., in which each node runs once or twice. The sqrt(n) strategy has one
/// plan, which may not fit. Greedy tries segment sizes from 0 to 3 times the memory of the sqrt(n)
/// plan, in steps of 1/20. It returns the fastest plan that fits.
Baseline chen_sqrt(const Graph& graph, Candidates candidates, const ChenOptions& options = {});
Baseline chen_greedy(const Graph& graph, Candidates candidates, const ChenOptions& options = {});

/// Plan by Checkmate's integer program, and plan by its rounding. The program starts from the
/// fastest plan of Chen's strategies and of a greedy search by recomputation alone.
Baseline checkmate(const Graph& graph, const MilpOptions& options);
Baseline checkmate_rounded(const Graph& graph, const MilpOptions& options);

}  // namespace dovetail::plan
