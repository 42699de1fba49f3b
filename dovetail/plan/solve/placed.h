#pragma once

#include "dovetail/plan/model/layout.h"
#include "dovetail/plan/solve/joint.h"
#include "dovetail/plan/solve/plan_cache.h"

/// Plans with addresses. A plan that fits the budget may need more memory once its tensors have
/// addresses, because of gaps between them. The plans here fit the budget with addresses.
namespace dovetail::plan {

/// Plan and the addresses of everything that it holds on the device.
struct PlacedSolution {
  Solution solution;
  /// Lower bound on the expected time (JointReport::bound_s) for the requested budget.
  double bound_s = 0;
  Layout layout;
  /// Memory with addresses: size of the layout plus Graph::base_bytes.
  int64_t bytes = 0;
};

/// Computes addresses (plan/model/layout.h) for a plan. The result may exceed the budget of
/// `graph`.
PlacedSolution with_places(const Graph& graph, Solution solution);

/// Returns the minimum budget for which `solve_placed` finds a plan. In contrast to `floor_of`, it
/// includes gaps between addresses. It is the minimum memory of plans found with a time limit of 0,
/// at budgets from `floor_of` upwards. `node` is the same as in `floor_of`. `gaps_bytes` has the
/// bytes beyond `floor_of`.
Floor placed_floor_of(const Graph& graph, const SolveOptions& options);

/// Returns the minimum bytes for which a plan with addresses is known. This is `placed_floor_of`,
/// or the bytes of the plan `known` if they are less.
int64_t placed_floor_bytes(const Graph& graph, const SolveOptions& options,
                           const PlacedSolution& known);

/// Returns a plan whose addresses and base bytes fit within `graph.budget_bytes`. Plans come from
/// `solve_jointly`. If a plan with addresses exceeds the budget, `solve_jointly` runs again with a
/// smaller budget. It runs again up to five times, with budgets down to `floor_of`. The time limit
/// applies to all runs together. If none of their plans fits, further plans are tried that take
/// little time to find. They are found with a time limit of 0, or offload, recompute or compress
/// everything. Success therefore does not depend on the time limit.
///
/// The result is never slower than a plan for this step in `cache` whose addresses fit. Fetches do
/// not wait (SolveOptions::fetches_wait), whatever the options say. Throws UserError if the budget
/// is below `floor_of`, or if no plan fits. A plan always fits if the budget is at least
/// `placed_floor_of`.
PlacedSolution solve_placed(const Graph& graph, const SolveOptions& options,
                            const PlanCache& cache = PlanCache({}));

}  // namespace dovetail::plan
