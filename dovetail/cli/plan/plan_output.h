#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/plan/show/outcome.h"
#include "dovetail/plan/show/trade_off.h"

namespace dovetail::cli {

/// Bytes in MiB, to a tenth.
std::string mib(int64_t bytes);

/// What a plan does with storages, and what each technique costs of the step's time; what each
/// codec packs, to how much, and how fast.
std::string decision_table(const plan::PlanOutcome& outcome, const plan::Graph& graph);

/// The same of each layer, and why.
std::string layer_table(const plan::PlanOutcome& outcome, const plan::Graph& graph);

/// The time of a step against its budget; in `keep_all_bytes` and `once_s` where both are 1.
std::string curve_table(const std::vector<plan::TradeOff>& curve, int64_t keep_all_bytes,
                        double once_s);

}  // namespace dovetail::cli
