#pragma once

#include "dovetail/plan/model/layout.h"
#include "dovetail/plan/solve/joint.h"
#include "dovetail/plan/solve/plan_cache.h"

namespace dovetail::plan {

struct PlacedSolution {
  Solution solution;
  double bound_s = 0;  ///< JointReport::bound_s, of the budget that was asked for
  Layout layout;
  int64_t bytes = 0;  ///< all places and the base bytes
};

/// Places for everything that a plan holds (plan/model/layout.h). The budget of `graph` does not
/// bind.
PlacedSolution with_places(const Graph& graph, Solution solution);

/// A floor that counts places: each budget from here on has a plan by `solve_placed`. It is the
/// minimum over plans that are found at once, at the floor and above it. The node is the one of
/// `floor_of`. Bytes beyond that floor are `gaps_bytes`.
Floor placed_floor_of(const Graph& graph, const SolveOptions& options);

/// Minimum bytes for which a plan with places is known: `placed_floor_of`, or `known` if its places
/// take less.
int64_t placed_floor_bytes(const Graph& graph, const SolveOptions& options,
                           const PlacedSolution& known);

/// A plan whose places and base bytes all lie within `graph.budget_bytes`. What a plan holds at a
/// time may be less than the memory that its places span, where they leave gaps between them: then
/// `solve_jointly` is asked for less, up to five times, and down to the floor. The time limit holds
/// for all. If none of these finds places, the plans are taken that are found at once, with
/// everything away: so whether there is an answer does not depend on the time that there is. Never
/// slower than one that `cache` has of this step. Fetches do not wait (SolveOptions::fetches_wait),
/// whatever the options say. UserError below the floor, and where no plan finds places, which
/// happens below `placed_floor_of` alone.
PlacedSolution solve_placed(const Graph& graph, const SolveOptions& options,
                            const PlanCache& cache = PlanCache({}));

}  // namespace dovetail::plan
