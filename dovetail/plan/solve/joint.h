#pragma once

#include "dovetail/plan/solve/milp.h"
#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {

/// What the integer program (joint_program.h) of a step came to.
struct JointReport {
  int columns = 0,
      rows = 0;  ///< 0 where there was no need of a program, or none that could be solved in time
  int programs = 0;      ///< solved, each without the decisions of those before
  bool started = false;  ///< the greedy plan was where the solver began
  /// No decisions whose schedule is as the program's lead to a plan that is expected to take less:
  /// what the solver proved before any decisions were excluded, or the fastest plan itself once
  /// none is left; without a program every node once. It is of `Scheduler`'s plans with the
  /// storages resident that are not in the way of the budget, and not of every plan that `check`
  /// accepts: that is Solution::bound_s.
  double bound_s = 0;
  double gap = 1;      ///< (expected_s - bound_s) / expected_s, of the plan
  double seconds = 0;  ///< of building and solving programs
};

struct JointSolution {
  Solution solution;  ///< `complete` if the gap is that of `milp`
  JointReport report;
};

/// A plan within `graph.budget_bytes` of all techniques of `options` decided at once: of what
/// `solve` finds, of what is found by changing decisions at random while programs are being solved,
/// and of what the integer program's solutions become when they are scheduled and their single
/// decisions improved, the one that is expected to take the least. While the program expects less
/// of its solution than the schedule takes, the solution is excluded and the program solved again,
/// until none is better, the gap is `milp.relative_gap` or `milp.time_limit_s`, of all programs
/// together, is over. `options.time_limit_s` holds for the greedy search; improving may take a
/// quarter of it for each program. Steps of many hundred nodes have no program: then the search
/// goes on for that time. Never slower than `solve`, nor than `options.start`. Throws UserError as
/// `solve` does.
JointSolution solve_jointly(const Graph& graph, const SolveOptions& options,
                            const MilpOptions& milp);
/// The same in `options.time_limit_s` for everything.
JointSolution solve_jointly(const Graph& graph, const SolveOptions& options);

}  // namespace dovetail::plan
