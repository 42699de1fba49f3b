#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "dovetail/plan/solve/placed.h"

namespace dovetail::plan {

/// Point of a curve: expected step time within a memory budget.
struct TradeOff {
  int64_t budget_bytes = 0;
  double expected_s = 0;
  /// Memory that the plan needs, including unused bytes between the addresses of tensors
  /// (PlacedSolution::bytes).
  int64_t placed_bytes = 0;
};

/// Returns the expected step time for several budgets. These are `budgets` evenly spaced values
/// above `floor_bytes` (see `placed_floor_of`), up to `keep_all_bytes`. `graph.budget_bytes` is one
/// more budget; `known` is the plan for it.
///
/// The plan of each point has addresses within the budget (plan/solve/placed.h), so it can be run.
/// Each search takes `options.time_limit_s` and starts from the plan of the next smaller budget.
/// The time therefore never rises with the budget. The curve begins with the smallest of the
/// budgets for which a plan was found.
std::vector<TradeOff> trade_off(const Graph& graph, const SolveOptions& options,
                                int64_t floor_bytes, int64_t keep_all_bytes, int budgets,
                                const PlacedSolution& known);

nlohmann::ordered_json to_json(const std::vector<TradeOff>& curve);

}  // namespace dovetail::plan
