#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "dovetail/plan/model/schedule.h"

/// Greedy search for a plan of a training step within a memory budget. Techniques are offload,
/// recompute, compress, and the choice of algorithms.
namespace dovetail::plan {

/// Techniques that a plan may use, and limits of the search.
struct SolveOptions {
  bool offload = true, recompute = true, compress = true;
  /// Permit that parameters and state leave the device over the end of the step. They are then on
  /// the host from their last use to their first use in the next step.
  bool across_steps = true;
  bool algorithms = true;    ///< choose algorithms; if false, each node takes its fastest
  bool fetches_wait = true;  ///< passed to Scheduler (plan/model/schedule.h)
  int64_t least_bytes = 0;   ///< tensors with fewer bytes always stay on the device
  /// Time after which the search returns the best plan so far. If there is none, the search
  /// continues until the first plan.
  double time_limit_s = 10;
  /// Decisions that the search schedules unchanged and also tries to improve, in addition to its
  /// own decisions.
  std::optional<Decisions> start;
};

/// Plan found by a search, with the decisions behind it.
struct Solution {
  Decisions decisions;
  Schedule schedule;
  /// Memory budget in bytes that the schedule had to meet. It may be below the requested budget.
  int64_t budget_bytes = 0;
  /// Lower bound on the step time of any plan: each node once, by its fastest algorithm.
  double bound_s = 0;
  double seconds = 0;    ///< duration of the search
  bool complete = true;  ///< false if the time limit ended the search
};

/// Lower bound (floor) on the memory of every plan with given options, and the node that needs it.
/// It counts
/// - the tensors that the node reads and writes,
/// - the node's smallest workspace,
/// - all tensors that cannot leave the device.
///
/// If `node` is -1, the floor is the memory of tensors that must be resident when the step begins.
struct Floor {
  int64_t bytes = 0;
  int node = -1;
  int64_t workspace_bytes = 0;  ///< smallest workspace of the node, which the floor includes
  /// Unused bytes between addresses that `bytes` includes (placed_floor_of); 0 from `floor_of`.
  int64_t gaps_bytes = 0;
};
/// Returns the floor of a step.
Floor floor_of(const Graph& graph, const SolveOptions& options);

/// Finds a plan within `graph.budget_bytes` greedily. Steps:
/// 1. While memory exceeds the budget, make the change that adds the least time per removed byte of
///    excess.
/// 2. Repeat step 1 for several budgets up to the requested one, and with subsets of the
///    techniques. Also repeat it with and without tensors that start on the host.
/// 3. In the plans found, revert or exchange each change if this makes the step faster.
/// 4. Return the plan with the minimum expected time.
///
/// A tensor starts on the host only if this makes a plan faster. In repeated blocks of a model,
/// equal gaps are first decided together, then one by one.
///
/// Throws UserError if the budget is below the floor, naming the node. Also throws UserError if no
/// plan is found.
Solution solve(const Graph& graph, const SolveOptions& options);

/// Finds a plan for each of several budgets, which must ascend. `one` finds the plan for one
/// budget. Each search starts from the decisions of the previous budget. If the previous plan is
/// faster, it is returned for this budget, too. So no plan is expected to take longer than a plan
/// for less memory.
std::vector<Solution> solve_each(
    const Graph& graph, const SolveOptions& options, const std::vector<int64_t>& budgets_bytes,
    const std::function<Solution(const Graph&, const SolveOptions&)>& one = solve);

/// Improves decisions by changing single decisions and pairs, as long as this makes the step
/// faster. Decisions that do not fit the budget are first changed greedily until they do. Returns
/// nullopt if this finds no plan within the budget.
std::optional<Solution> improve(const Graph& graph, const SolveOptions& options,
                                const Decisions& decisions);

}  // namespace dovetail::plan
