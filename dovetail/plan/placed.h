#pragma once

#include "dovetail/plan/joint.h"
#include "dovetail/plan/layout.h"
#include "dovetail/plan/plan_cache.h"

namespace dovetail::plan {

struct PlacedSolution {
  Solution solution;
  double bound_s = 0;  ///< JointReport::bound_s, of the budget that was asked for
  Layout layout;
};

/// A plan whose places and base bytes all lie within `graph.budget_bytes`. What a plan holds at a time may be less than
/// the memory that its places span, where they leave gaps between them: then `solve_jointly` is asked for less, up to
/// five times, and down to the floor. The time limit holds for all. If none of these finds places, the plans are taken
/// that are found at once, with everything away: so whether there is an answer does not depend on the time that there
/// is. Never slower than one that `cache` has of this step.
/// Fetches do not wait (SolveOptions::fetches_wait), whatever the options say. UserError as `solve`, and if no plan
/// that was found has places within the budget.
PlacedSolution solve_placed(const Graph& graph, const SolveOptions& options, const PlanCache& cache = PlanCache({}));

}  // namespace dovetail::plan
