#pragma once

#include "dovetail/plan/model/layout.h"
#include "dovetail/plan/solve/joint.h"
#include "dovetail/plan/solve/plan_cache.h"

namespace dovetail::plan {

struct PlacedSolution {
  Solution solution;
  double bound_s = 0;  ///< JointReport::bound_s for the requested budget
  Layout layout;
  int64_t bytes = 0;  ///< end of all places, plus the base bytes
};

/// Computes addresses (places) for everything that a plan holds (plan/model/layout.h). The budget
/// of `graph` is not enforced.
PlacedSolution with_places(const Graph& graph, Solution solution);

/// Returns the floor including gaps between addresses. `solve_placed` finds a plan for each budget
/// from here on. The floor is the minimum over plans found with a time limit of 0, at budgets from
/// `floor_of` upwards. The node is the node of `floor_of`. `gaps_bytes` counts the bytes beyond
/// `floor_of`.
Floor placed_floor_of(const Graph& graph, const SolveOptions& options);

/// Returns the minimum bytes for which a plan with addresses is known. This is `placed_floor_of`,
/// or the bytes of `known` if they are less.
int64_t placed_floor_bytes(const Graph& graph, const SolveOptions& options,
                           const PlacedSolution& known);

/// Returns a plan whose addresses and base bytes fit within `graph.budget_bytes`. Gaps between
/// addresses may need more memory than the plan holds at the same time. In that case,
/// `solve_jointly` runs again with smaller budgets, up to five times and down to the floor. The
/// time limit applies to all runs together. If no run fits, the function takes plans found with a
/// time limit of 0, with everything offloaded or dropped. Success therefore does not depend on the
/// time limit.
///
/// The result is never slower than a plan for this step in `cache`. Fetches do not wait
/// (SolveOptions::fetches_wait), whatever the options say. Throws UserError below the floor, or if
/// no plan fits. No plan fits only below `placed_floor_of`.
PlacedSolution solve_placed(const Graph& graph, const SolveOptions& options,
                            const PlanCache& cache = PlanCache({}));

}  // namespace dovetail::plan
