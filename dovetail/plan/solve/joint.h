#pragma once

#include "dovetail/plan/solve/milp.h"
#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {

/// Report on solving the integer program (plan/solve/joint_program.h) of a step.
struct JointReport {
  /// Columns and rows of the first program. 0 if no program was needed, or if none could be solved
  /// in time.
  int columns = 0, rows = 0;
  /// Number of programs solved. Each excludes the decisions of previous solutions.
  int programs = 0;
  bool started = false;  ///< the solver started from the plan of the greedy search (`solve`)
  /// Lower bound on the expected time of the plans that `Scheduler` makes from the program's
  /// decisions. It is the bound that the solver proved before any decisions were excluded. If no
  /// decisions are left, it is the time of the fastest plan. Without a program, it is the time of
  /// every node once. In these plans, storages that need not leave the device to fit the budget
  /// stay resident. Solution::bound_s, in contrast, bounds every plan that `check` accepts.
  double bound_s = 0;
  /// (expected_s - bound_s) / expected_s, where expected_s is the expected time of the plan.
  double gap = 1;
  double seconds = 0;  ///< time to build and solve programs
};

/// Plan of `solve_jointly`, and how it was found.
struct JointSolution {
  Solution solution;  ///< `complete` is true if the gap is at most `milp.relative_gap`
  JointReport report;
};

/// Returns the plan with the minimum expected time among candidates within `graph.budget_bytes`.
/// All techniques of `options` are decided at once. Candidates are
/// - the plan of the greedy search (`solve`),
/// - plans found by random changes of decisions while programs are being solved,
/// - solutions of the integer program, scheduled, with single decisions improved.
///
/// The time of a scheduled solution may exceed its time in the program. The solution is then
/// excluded and the program solved again. This ends if no solution is better, if the gap is at most
/// `milp.relative_gap`, or after `milp.time_limit_s` for all programs together. The greedy search
/// takes up to `options.time_limit_s`. Improvement may take a quarter of that for each program.
/// Steps of many hundred nodes have no program; random changes then take its time. The plan is
/// never slower than the plan of `solve`, nor than `options.start`. Throws UserError as `solve`
/// does.
JointSolution solve_jointly(const Graph& graph, const SolveOptions& options,
                            const MilpOptions& milp);
/// Same, with `options.time_limit_s` for the greedy search, programs and improvement together.
JointSolution solve_jointly(const Graph& graph, const SolveOptions& options);

}  // namespace dovetail::plan
