#pragma once

#include <string>
#include <vector>

#include "dovetail/train/config/run_config.h"

namespace dovetail::cli {

/// What `dovetail plan CONFIG` is asked.
struct PlanRequest {
  std::string config;
  std::vector<std::string> overrides;  ///< key=value
  std::string budget;                  ///< in place of memory.budget, if given
  std::string out;                     ///< a folder, or a .json file for the plan
  double time_limit_s = 0;             ///< in place of memory.solve_s; 0: as that says
  bool layers = false, curve = false, json = false;
};

/// The config as the request has it. Throws UserError as `load_run_config`.
RunConfig config_of(const PlanRequest& request);

/// Takes steps of the config's training on random tokens, apart from its data and its run's folder:
/// some as they are, two that are recorded, some that time the operations, and some by the plan
/// that is then made; prints what was decided, and time and peak as predicted and as measured.
/// UserError below the floor, with the largest batch that the budget is enough for, before anything
/// is timed or solved.
void plan_config(const PlanRequest& request);

/// Prints whether a step of the config fits into this machine's memory, or with a budget into that,
/// and the largest batch that does; false if not. Nothing of the config's size is allocated unless
/// it is estimated to fit.
bool say_whether_it_fits(const PlanRequest& request);

}  // namespace dovetail::cli
