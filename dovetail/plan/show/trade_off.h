#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "dovetail/plan/solve/placed.h"

namespace dovetail::plan {

/// What a step is expected to take within a budget.
struct TradeOff {
  int64_t budget_bytes = 0;
  double expected_s = 0;
  int64_t placed_bytes =
      0;  ///< what the places of its plan's tensors span, with the graph's base bytes
};

/// The time of a step against its budget: for `budgets` evenly spaced from above `floor_bytes`
/// (`placed_floor_of`) to `keep_all_bytes`, and for the graph's own, whose plan is `known`. The
/// plan of each point has places within the budget (plan/solve/placed.h), so it can be run. Its
/// search takes `options.time_limit_s` and starts from the plan of the budget below: the time never
/// rises with the budget. Budgets below the first one for which a plan is found are left out.
std::vector<TradeOff> trade_off(const Graph& graph, const SolveOptions& options,
                                int64_t floor_bytes, int64_t keep_all_bytes, int budgets,
                                const PlacedSolution& known);

nlohmann::ordered_json to_json(const std::vector<TradeOff>& curve);

}  // namespace dovetail::plan
