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

/// Returns the minimum budget (struct Floor) for which `solve_placed` finds a plan, which includes
/// gaps between addresses. It is the minimum over plans found with a time limit of 0, at budgets
/// from `floor_of` upwards. `node` is the same as in `floor_of`. `gaps_bytes` has the bytes beyond
/// `floor_of`.
Floor placed_floor_of(const Graph& graph, const SolveOptions& options);

/// Returns the minimum bytes for which a plan with addresses is known. This is `placed_floor_of`,
/// or the bytes of the plan `known` if they are less.
int64_t placed_floor_bytes(const Graph& graph, const SolveOptions& options,
                           const PlacedSolution& known);

/// Returns a plan whose addresses and base bytes fit within `graph.budget_bytes`. Plans come from
/// `solve_jointly`. If the addresses of a plan exceed the budget, it runs again with smaller
/// budgets. It does so up to five times and down to the floor. The time limit applies to all runs
/// together. If no run fits, the function takes plans found with a time limit of 0, with everything
/// offloaded or dropped. Success therefore does not depend on the time limit.
///
/// The result is never slower than a plan for this step in `cache` whose addresses fit. Fetches do
/// not wait (SolveOptions::fetches_wait), whatever the options say. Throws UserError if the budget
/// is below the floor, or if no plan fits. No plan fits only below `placed_floor_of`.
PlacedSolution solve_placed(const Graph& graph, const SolveOptions& options,
                            const PlanCache& cache = PlanCache({}));

}  // namespace dovetail::plan
