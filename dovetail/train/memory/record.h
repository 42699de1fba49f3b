#pragma once

#include <nlohmann/json_fwd.hpp>

#include <span>
#include <vector>

#include "dovetail/plan/model/check.h"
#include "dovetail/plan/run/executor.h"
#include "dovetail/plan/show/trade_off.h"

namespace dovetail {

/// A planned step as its record is made from it; `runs` are steps that ran by the plan, maybe none
/// yet.
struct PlannedStepView {
  const plan::Graph& graph;
  const plan::Plan& plan;
  const plan::Timeline& timeline;
  int64_t places_bytes;  ///< all that the places of the plan span, with what is always resident
  int64_t used_bytes;    ///< of them those that steps by it have used, as the system counts
  int64_t process_predicted_bytes,
      process_bytes;  ///< growth of the process, high-water mark; 0: not known
  std::span<const plan::Executor::Run> runs;
  std::span<const plan::TradeOff> curve;
};

/// Of `runs` the one of median length; null without any.
const plan::Executor::Run* median_run(std::span<const plan::Executor::Run> runs);

/// What memory_plan.json holds of it (docs/training.md): decisions by technique and by layer, the
/// step's time and peak as predicted and as measured, memory over time by purpose, the streams, and
/// the time against the budget.
nlohmann::ordered_json memory_record(const PlannedStepView& step);

}  // namespace dovetail
