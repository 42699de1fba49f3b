#pragma once

#include <nlohmann/json_fwd.hpp>

#include <span>
#include <vector>

#include "dovetail/plan/model/check.h"
#include "dovetail/plan/run/executor.h"
#include "dovetail/plan/show/trade_off.h"

namespace dovetail::plan {

/// Data from which memory_record is made.
struct PlannedStepView {
  const Graph& graph;
  const Plan& plan;
  const Timeline& timeline;  ///< predicted times of a step that runs by the plan
  /// Bytes of the memory in which the plan places tensors, including tensors that are always
  /// resident.
  int64_t places_bytes;
  /// Part of `places_bytes` in resident memory (pages that steps by the plan have touched).
  int64_t used_bytes;
  /// Maximum growth of the process's resident memory above its size before the model was made.
  /// `process_predicted_bytes`: predicted. `process_bytes`: measured. 0: unknown.
  int64_t process_predicted_bytes, process_bytes;
  /// Measured times of the first steps that ran by the plan; may be empty.
  std::span<const Executor::Run> runs;
  std::span<const TradeOff> curve;  ///< predicted step time for other budgets
};

/// Returns the run with the median duration, or null if `runs` is empty.
const Executor::Run* median_run(std::span<const Executor::Run> runs);

/// Returns the content of memory_plan.json (docs/training.md):
///
/// - the plan's decisions, counted by technique and by layer
/// - the step's time and peak memory, predicted and measured
/// - memory over time by purpose (weights, activations, ...)
/// - the times of computation and of copies
/// - step time as a function of the budget
nlohmann::ordered_json memory_record(const PlannedStepView& step);

}  // namespace dovetail::plan
