#pragma once

#include <cstdint>
#include <limits>

#include "dovetail/plan/model/layout.h"
#include "dovetail/plan/solve/joint.h"
#include "dovetail/plan/solve/plan_cache.h"

/// Plans with addresses. Addresses of tensors can have unused bytes between them. A plan that fits
/// the budget may therefore need more memory once its tensors have addresses. The plans here fit
/// the budget with addresses.
namespace dovetail::plan {

/// Plan and the addresses of everything that it holds on the device.
struct PlacedSolution {
  Solution solution;
  /// Report on the search for the requested budget. Without a search (PlanCache), only `bound_s` is
  /// set: each node once.
  JointReport report;
  Layout layout;
  /// Memory with addresses: size of the layout plus Graph::base_bytes.
  int64_t bytes = 0;
};

/// Computes addresses (plan/model/layout.h) for a plan. The result may exceed the budget of
/// `graph`. The search for addresses ends if the result cannot have fewer than `too_many` bytes.
PlacedSolution with_places(const Graph& graph, Solution solution,
                           int64_t too_many = std::numeric_limits<int64_t>::max());

/// Returns the minimum budget for which `solve_placed` finds a plan. In contrast to `floor_of`, it
/// includes unused bytes between addresses; Floor::gaps_bytes has their number. Floor::node is the
/// same as from `floor_of`. The result is the minimum memory among plans found with a time limit of
/// 0, at several budgets from `floor_of` upwards.
Floor placed_floor_of(const Graph& graph, const SolveOptions& options);

/// Returns a floor that exceeds `budget_bytes` if no plan is known for this budget. In contrast to
/// `placed_floor_of`
/// - it does not depend on measured times: two recordings of a step give the same floor,
/// - the search ends at the first plan within the budget, so a result within the budget is not the
///   minimum,
/// - there is no search if `floor_of` exceeds the budget; the result is then `floor_of`.
Floor floor_for_budget(const Graph& graph, SolveOptions options, int64_t budget_bytes);

/// Returns the minimum bytes for which a plan with addresses is known. This is the minimum of
/// `placed_floor_of` and the bytes of the plan `known`.
int64_t placed_floor_bytes(const Graph& graph, const SolveOptions& options,
                           const PlacedSolution& known);

/// Returns a plan whose addresses and base bytes fit within `graph.budget_bytes`. Steps:
/// 1. `solve_jointly` finds a plan, and the plan gets addresses.
/// 2. If the plan with addresses exceeds the budget, step 1 is repeated with a smaller budget. It
///    is repeated up to five times, with budgets down to `floor_of`.
/// 3. If none of these plans fits, plans that take little time to find are tried. Some are plans of
///    `solve` with a time limit of 0. In the others, every tensor is offloaded, recomputed or
///    compressed if possible.
///
/// The time limit applies to all runs of `solve_jointly` together. Step 3 ignores it, so success
/// does not depend on it.
///
/// The result is never slower than a plan for this step in `cache` whose addresses fit. Fetches do
/// not wait (SolveOptions::fetches_wait), whatever the options say. Throws UserError if the budget
/// is below `floor_of`, or if no plan fits. A plan always fits if the budget is at least
/// `placed_floor_of`. Without copies, one also fits if `floor_for_budget` is within the budget.
PlacedSolution solve_placed(const Graph& graph, const SolveOptions& options,
                            const PlanCache& cache = PlanCache({}));

}  // namespace dovetail::plan
