#pragma once

#include <nlohmann/json_fwd.hpp>

#include <span>
#include <vector>

#include "dovetail/plan/model/check.h"
#include "dovetail/plan/run/executor.h"
#include "dovetail/plan/show/trade_off.h"

namespace dovetail::train {

/// Data from which memory_record is made. `runs` are the recorded times of steps that ran by the
/// plan; there may be none yet.
struct PlannedStepView {
  const plan::Graph& graph;
  const plan::Plan& plan;
  const plan::Timeline& timeline;  ///< predicted times of a step that runs by the plan
  /// Bytes of the memory in which the plan places tensors, including tensors that are always
  /// resident.
  int64_t places_bytes;
  /// Part of `places_bytes` in resident memory (pages that steps by the plan have touched).
  int64_t used_bytes;
  /// Maximum growth of the process above its size before the model. `process_predicted_bytes`:
  /// predicted. `process_bytes`: measured. 0: unknown.
  int64_t process_predicted_bytes, process_bytes;
  std::span<const plan::Executor::Run> runs;
  std::span<const plan::TradeOff> curve;  ///< predicted step time for other budgets
};

/// Returns the run with the median duration, or null if `runs` is empty.
const plan::Executor::Run* median_run(std::span<const plan::Executor::Run> runs);

/// Returns the content of memory_plan.json (docs/training.md). It has the plan's decisions, counted
/// by technique and by layer. It has the step's time and peak memory, predicted and measured. It
/// has memory over time by purpose, and the times of computation and copies. It also has step time
/// as a function of the budget.
nlohmann::ordered_json memory_record(const PlannedStepView& step);

}  // namespace dovetail::train
