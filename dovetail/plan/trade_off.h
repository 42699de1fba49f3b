#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "dovetail/plan/solve.h"

namespace dovetail::plan {

/// What a step is expected to take within a budget.
struct TradeOff {
  int64_t budget_bytes = 0;
  double expected_s = 0;
};

/// The time of a step against its budget: of `budgets` evenly spaced from above the floor to `keep_all_bytes`, and of
/// the graph's own, for which `known` is the plan. Each is searched for `options.time_limit_s`, from the plan of the
/// budget below it on, so the time never rises with the budget; a budget for which no plan is found is left out.
std::vector<TradeOff> trade_off(const Graph& graph, const SolveOptions& options, int64_t keep_all_bytes, int budgets,
                                const Solution& known);

nlohmann::ordered_json to_json(const std::vector<TradeOff>& curve);

}  // namespace dovetail::plan
