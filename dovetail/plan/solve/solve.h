#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "dovetail/plan/model/schedule.h"

namespace dovetail::plan {

struct SolveOptions {
  bool offload = true, recompute = true, compress = true;
  bool across_steps =
      true;  ///< what is offloaded may be parameters and state over the end of the step
  bool algorithms = true;    ///< choose them; else each node takes its fastest
  bool fetches_wait = true;  ///< Scheduler
  int64_t least_bytes = 0;   ///< tensors below this stay where they are
  double time_limit_s =
      10;  ///< an answer that has been found by then is the answer; if none, the first one
  std::optional<Decisions> start;  ///< tried as they are, beside what the search finds
};

struct Solution {
  Decisions decisions;
  Schedule schedule;
  int64_t budget_bytes = 0;  ///< that the decisions were scheduled for
  double bound_s = 0;        ///< no plan ends earlier: every node once, by its fastest algorithm
  double seconds = 0;        ///< of solving
  bool complete = true;      ///< false: the time limit ended the search
};

/// The memory that no plan of these options gets below, and the node that needs it: what it reads
/// and writes, its least workspace, and what may not leave; or, with node -1, what may not be away
/// when the step begins.
struct Floor {
  int64_t bytes = 0;
  int node = -1;
  int64_t workspace_bytes = 0;  ///< workspace that the node is counted with
  int64_t gaps_bytes = 0;       ///< between places (placed_floor_of); `floor_of` knows no places
};
Floor floor_of(const Graph& graph, const SolveOptions& options);

/// A plan within `graph.budget_bytes`, found greedily: while memory exceeds the budget somewhere,
/// the change that costs the least time for each byte over the budget that it removes; then every
/// change is taken back, or exchanged for another, that makes the step faster. It is begun anew for
/// several budgets up to the one asked for and for each technique alone, with and without what
/// starts on the host, and the plan that is expected to take the least is kept; nothing starts on
/// the host that makes no plan faster there. Equal gaps of repeated blocks are decided together
/// before any alone. Throws UserError below the floor, naming the node, and where no time is enough
/// to find a plan.
Solution solve(const Graph& graph, const SolveOptions& options);

/// A plan for each of these budgets, which ascend, by `one`. No plan is expected to take longer
/// than one for less memory: each search starts from the decisions of the one before, and its plan
/// stays if it is the faster one.
std::vector<Solution> solve_each(
    const Graph& graph, const SolveOptions& options, const std::vector<int64_t>& budgets_bytes,
    const std::function<Solution(const Graph&, const SolveOptions&)>& one = solve);

/// The plan that changes of single decisions, and of pairs, lead to from these, each making the
/// step faster; from decisions that do not fit, first greedily to some that do. Nothing if that
/// finds no plan within the budget.
std::optional<Solution> improve(const Graph& graph, const SolveOptions& options,
                                const Decisions& decisions);

}  // namespace dovetail::plan
