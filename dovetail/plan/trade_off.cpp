#include "dovetail/plan/trade_off.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "dovetail/base/error.h"

namespace dovetail::plan {
namespace {

/// Of the budget of `graph`; nothing where the search finds no plan in its time.
std::optional<Solution> try_to_solve(const Graph& graph, const SolveOptions& options) {
  try {
    return solve(graph, options);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<TradeOff> trade_off(const Graph& graph, const SolveOptions& options, int64_t keep_all_bytes, int budgets,
                                const Solution& known) {
  const int64_t floor_bytes = floor_of(graph, options).bytes;
  std::set<int64_t> asked = {graph.budget_bytes};
  for (int i = 1; i <= budgets; ++i) asked.insert(floor_bytes + (keep_all_bytes - floor_bytes) * i / budgets);
  std::vector<TradeOff> curve;
  Graph within = graph;
  SolveOptions next = options;
  for (const int64_t budget : asked) {
    within.budget_bytes = budget;
    std::optional<Solution> found;
    if (budget == graph.budget_bytes)
      found = known;
    else
      found = try_to_solve(within, next);
    if (!found) continue;
    double expected_s = found->schedule.expected_s;
    if (!curve.empty() && curve.back().expected_s <= expected_s)
      expected_s = curve.back().expected_s;  // the plan of less memory is one of more
    else
      next.start = found->decisions;
    curve.push_back({budget, expected_s});
  }
  return curve;
}

nlohmann::ordered_json to_json(const std::vector<TradeOff>& curve) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const TradeOff& point : curve)
    json.push_back({{"budget_bytes", point.budget_bytes}, {"expected_s", point.expected_s}});
  return json;
}

}  // namespace dovetail::plan
