#pragma once

#include <nlohmann/json_fwd.hpp>

#include <span>
#include <vector>

#include "dovetail/plan/model/check.h"
#include "dovetail/plan/run/executor.h"
#include "dovetail/plan/show/trade_off.h"

namespace dovetail::train {

/// Data from which the record of a planned step is made. `runs` are steps that ran by the plan;
/// there may be none yet.
struct PlannedStepView {
  const plan::Graph& graph;
  const plan::Plan& plan;
  const plan::Timeline& timeline;
  /// Bytes that the plan's memory layout spans, including tensors that are always resident.
  int64_t places_bytes;
  /// Part of `places_bytes` that steps by the plan have touched, as counted by the system.
  int64_t used_bytes;
  /// Peak growth of the process, predicted and measured; 0: unknown.
  int64_t process_predicted_bytes, process_bytes;
  std::span<const plan::Executor::Run> runs;
  std::span<const plan::TradeOff> curve;
};

/// Returns the run with the median duration, or null if `runs` is empty.
const plan::Executor::Run* median_run(std::span<const plan::Executor::Run> runs);

/// Returns the content of memory_plan.json (docs/training.md). It has decisions by technique and by
/// layer, and the step's time and peak memory, predicted and measured. It also has memory over time
/// by purpose, the streams, and step time as a function of the budget.
nlohmann::ordered_json memory_record(const PlannedStepView& step);

}  // namespace dovetail::train
