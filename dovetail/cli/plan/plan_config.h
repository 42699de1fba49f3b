#pragma once

#include <string>
#include <vector>

#include "dovetail/train/config/run_config.h"

namespace dovetail::cli {

/// Arguments of `dovetail plan CONFIG`.
struct PlanRequest {
  std::string config;
  std::vector<std::string> overrides;  ///< key=value
  std::string budget;                  ///< replaces memory.budget, if given
  std::string out;                     ///< folder, or .json file for the plan
  double time_limit_s = 0;             ///< replaces memory.solve_s; 0: use memory.solve_s
  bool layers = false, curve = false, json = false;
};

/// Loads the config of the request, with its overrides. Throws UserError like `load_run_config`.
train::RunConfig config_of(const PlanRequest& request);

/// Makes a memory plan for a config and measures it. It runs training steps on random tokens,
/// without the config's data and run folder. Some steps run as they are, two are recorded, and some
/// time the operations. The last ones run by the plan that is then made. Prints the decisions, and
/// time and peak memory as predicted and as measured. Throws UserError if the budget is below the
/// floor, before anything is timed or solved. The error gives the largest batch for which the
/// budget is enough.
void plan_config(const PlanRequest& request);

/// Prints whether a step of the config fits into this machine's memory, or into memory.budget if it
/// is set. Also prints the largest batch that fits. Returns false if the step does not fit. Nothing
/// of the config's size is allocated unless it is estimated to fit.
bool say_whether_it_fits(const PlanRequest& request);

}  // namespace dovetail::cli
