#pragma once

#include "dovetail/plan/milp.h"
#include "dovetail/plan/solve.h"

namespace dovetail::plan {

/// What the integer program (joint_program.h) of a step came to.
struct JointReport {
  int columns = 0, rows = 0;
  int programs = 0;      ///< solved, each without the decisions of those before
  bool started = false;  ///< the greedy plan was where the solver began
  /// No decisions whose schedule is as the program's lead to a faster plan: what the solver proved before any decisions
  /// were excluded, or the fastest plan itself once none is left. 0 where the program left something out. It is of
  /// `Scheduler`'s plans with the storages resident that are not in the way of the budget, and not of every plan that
  /// `check` accepts: that is Solution::bound_s.
  double bound_s = 0;
  double gap = 1;      ///< (makespan - bound_s) / makespan
  double seconds = 0;  ///< of building and solving programs
};

struct JointSolution {
  Solution solution;
  JointReport report;
};

/// A plan within `graph.budget_bytes` of all techniques of `options` decided at once: the fastest of what `solve` finds
/// and of what the integer program's solutions become when they are scheduled and their single decisions improved.
/// While the program expects less time of its solution than the schedule takes, the solution is excluded and the
/// program solved again, until none is better or `milp.time_limit_s`, of all programs together, is over.
/// `options.time_limit_s` holds for the greedy search; improving may take a quarter of it for each program. Never
/// slower than `solve`. Throws UserError as `solve` does.
JointSolution solve_jointly(const Graph& graph, const SolveOptions& options, const MilpOptions& milp);

}  // namespace dovetail::plan
