#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/plan/show/outcome.h"
#include "dovetail/plan/show/trade_off.h"

namespace dovetail::plan {

/// Functions that make the texts that `dovetail plan` prints about a memory plan. A plan decides
/// for each storage of a training step: keep it, recompute it, offload it to host memory, or
/// compress it.

/// Returns a number of bytes in MiB with one decimal, without a unit. Example: "2.5".
std::string mib(int64_t bytes);

/// Returns a table with a row for each decision: number of storages, their MiB, and the time that
/// the decision costs. Below the table is a line for each codec that compresses storages. This line
/// gives the MiB before and after compression, the error and the speeds.
std::string decision_table(const PlanOutcome& outcome, const Graph& graph);

/// Returns a table with a row for each layer and decision: number of storages, their MiB, and the
/// reason for the decision.
std::string layer_table(const PlanOutcome& outcome, const Graph& graph);

/// Returns a table of the predicted step time for each memory budget in `curve`. It also gives each
/// budget as a multiple of `keep_all_bytes`, the bytes of a step that keeps everything. Times are
/// given as multiples of `once_s`, the time of a step that runs each operation once.
std::string curve_table(const std::vector<TradeOff>& curve, int64_t keep_all_bytes, double once_s);

}  // namespace dovetail::plan
