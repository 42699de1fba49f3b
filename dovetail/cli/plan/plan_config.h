#pragma once

#include <string>
#include <vector>

#include "dovetail/train/config/run_config.h"

namespace dovetail::cli {

/// Arguments of `dovetail plan CONFIG`.
struct PlanRequest {
  std::string config;                  ///< TOML file of the training run
  std::vector<std::string> overrides;  ///< key=value
  std::string budget;       ///< value that replaces memory.budget; empty: use memory.budget
  std::string out;          ///< folder or .json file to write the plan to; empty: none
  double time_limit_s = 0;  ///< maximum seconds to make the plan; 0: use memory.solve_s
  /// `layers`: also print a table by layer. `curve`: also print a table of step time by memory
  /// budget. `json`: print JSON instead of text.
  bool layers = false, curve = false, json = false;
};

/// Loads the config of the request, with `overrides` and `budget` applied. Throws UserError like
/// `load_run_config`.
train::RunConfig config_of(const PlanRequest& request);

/// Makes a memory plan for the training steps of a config, and measures it. A plan decides for each
/// tensor of a step: keep, recompute, offload or compress. Runs training steps on random data,
/// without the config's data and run folder:
///
/// 1. The first steps run without a plan.
/// 2. Two further steps are recorded.
/// 3. In some more steps, each operation is timed. The plan is made from all these steps.
/// 4. The last steps follow the plan.
///
/// Prints the decisions, and time and peak memory as predicted and as measured.
///
/// Throws UserError if the budget is below the floor, the minimum bytes that any plan needs. The
/// error is thrown before anything is timed or solved. The error gives the largest batch for which
/// the budget is enough.
void plan_config(const PlanRequest& request);

/// Prints whether a training step of the config fits. The limit is memory.budget if it is set,
/// otherwise this machine's memory. Also prints the largest batch that fits. Returns false if the
/// step does not fit.
///
/// To find out, the function records steps with fewer samples than the config asks for. It records
/// a step with that number only if the step is estimated to fit easily. If steps cannot be
/// recorded, the answer is an estimate. Nothing of the config's size is allocated unless it is
/// estimated to fit.
bool log_whether_it_fits(const PlanRequest& request);

}  // namespace dovetail::cli
