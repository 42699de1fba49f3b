#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/plan/show/outcome.h"
#include "dovetail/plan/show/trade_off.h"

namespace dovetail::cli {

/// Formats bytes as MiB with one decimal.
std::string mib(int64_t bytes);

/// Returns a table of storages by decision (keep, recompute, offload, compress), with the cost in
/// time of each. A line for each codec gives its bytes before and after packing, its error and its
/// speed.
std::string decision_table(const plan::PlanOutcome& outcome, const plan::Graph& graph);

/// Returns a table of storages by layer and decision, with reasons.
std::string layer_table(const plan::PlanOutcome& outcome, const plan::Graph& graph);

/// Returns a table of step time by budget. It also gives ratios: budgets to `keep_all_bytes`, times
/// to `once_s` (each operation runs once).
std::string curve_table(const std::vector<plan::TradeOff>& curve, int64_t keep_all_bytes,
                        double once_s);

}  // namespace dovetail::cli
