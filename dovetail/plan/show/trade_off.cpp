#include "dovetail/plan/show/trade_off.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/plan/solve/placed.h"

namespace dovetail::plan {
namespace {

/// Returns the plan for the budget of `graph`; nullopt if the search finds none in its time.
std::optional<PlacedSolution> try_to_place(const Graph& graph, const SolveOptions& options) {
  try {
    return solve_placed(graph, options);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<TradeOff> trade_off(const Graph& graph, const SolveOptions& options,
                                int64_t floor_bytes, int64_t keep_all_bytes, int budgets,
                                const PlacedSolution& known) {
  std::set<int64_t> asked = {graph.budget_bytes};
  for (int i = 1; i <= budgets; ++i)
    asked.insert(floor_bytes + (keep_all_bytes - floor_bytes) * i / budgets);
  std::vector<TradeOff> curve;
  Graph within = graph;
  SolveOptions next = options;
  for (const int64_t budget : asked) {
    within.budget_bytes = budget;
    std::optional<PlacedSolution> found =
        budget == graph.budget_bytes ? known : try_to_place(within, next);
    if (found && (curve.empty() || found->solution.schedule.expected_s < curve.back().expected_s)) {
      curve.push_back({budget, found->solution.schedule.expected_s, found->bytes});
      next.start = std::move(found->solution.decisions);
    } else if (!curve.empty()) {  // a plan for less memory is valid here, too
      curve.push_back({budget, curve.back().expected_s, curve.back().placed_bytes});
    }
  }
  return curve;
}

nlohmann::ordered_json to_json(const std::vector<TradeOff>& curve) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const TradeOff& point : curve)
    json.push_back({{"budget_bytes", point.budget_bytes},
                    {"expected_s", point.expected_s},
                    {"placed_bytes", point.placed_bytes}});
  return json;
}

}  // namespace dovetail::plan
