#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "dovetail/plan/model/schedule.h"

namespace dovetail::plan {

struct SolveOptions {
  bool offload = true, recompute = true, compress = true;
  /// Parameters and state may be offloaded over the end of the step.
  bool across_steps = true;
  bool algorithms = true;    ///< choose algorithms; else each node takes its fastest
  bool fetches_wait = true;  ///< see Scheduler
  int64_t least_bytes = 0;   ///< smaller tensors stay where they are
  /// The best plan at this time is the answer. If there is none, the search continues until the
  /// first plan.
  double time_limit_s = 10;
  std::optional<Decisions> start;  ///< tried unchanged, in addition to the plans of the search
};

struct Solution {
  Decisions decisions;
  Schedule schedule;
  int64_t budget_bytes = 0;  ///< budget for which the decisions were scheduled
  double bound_s = 0;        ///< lower bound: each node once, by its fastest algorithm
  double seconds = 0;        ///< duration of solving
  bool complete = true;      ///< false: the time limit ended the search
};

/// Memory that every plan with these options needs, and the node that needs it. Memory of a node is
/// what it reads and writes, its smallest workspace, and everything that cannot leave. If node is
/// -1, it is the memory of tensors that must be resident when the step begins.
struct Floor {
  int64_t bytes = 0;
  int node = -1;
  int64_t workspace_bytes = 0;  ///< workspace that is counted for the node
  int64_t gaps_bytes = 0;       ///< gaps between addresses (placed_floor_of); 0 in `floor_of`
};
Floor floor_of(const Graph& graph, const SolveOptions& options);

/// Finds a plan within `graph.budget_bytes` greedily. While memory exceeds the budget, it makes the
/// change with the least time per byte of excess removed. It then reverts or exchanges each change
/// if this makes the step faster. The search is repeated for several budgets up to the requested
/// one and with subsets of the techniques. It also runs with and without tensors that start on the
/// host. The plan with the minimum expected time is returned. A tensor starts on the host only if
/// this makes a plan faster. Equal gaps of repeated blocks are decided together before any single
/// one.
///
/// Throws UserError below the floor, naming the node. Also throws UserError if no plan is found.
Solution solve(const Graph& graph, const SolveOptions& options);

/// Finds a plan by `one` for each of these budgets, which must ascend. No plan is expected to take
/// longer than a plan for less memory. Each search starts from the decisions of the previous
/// budget, whose plan is kept if it is faster.
std::vector<Solution> solve_each(
    const Graph& graph, const SolveOptions& options, const std::vector<int64_t>& budgets_bytes,
    const std::function<Solution(const Graph&, const SolveOptions&)>& one = solve);

/// Improves decisions by changing single decisions and pairs, as long as this makes the step
/// faster. Decisions that do not fit are first changed greedily until they do. Returns nullopt if
/// this finds no plan within the budget.
std::optional<Solution> improve(const Graph& graph, const SolveOptions& options,
                                const Decisions& decisions);

}  // namespace dovetail::plan
