#pragma once

#include "dovetail/plan/solve/milp.h"
#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {

/// Report on solving the integer program (plan/solve/joint_program.h) of a step.
struct JointReport {
  /// Columns and rows of the first program. 0 if no program was needed, or if the step is too large
  /// for a program.
  int columns = 0, rows = 0;
  /// Number of programs solved. Each program after the first excludes the decisions of the previous
  /// solutions.
  int programs = 0;
  bool started = false;  ///< the solver started from the plan of the greedy search (`solve`)
  /// Lower bound on the expected time of the plans that `Scheduler` makes from the program's
  /// decisions. In these plans, a storage stays resident if it need not leave the device to fit the
  /// budget. Solution::bound_s, in contrast, bounds every plan that `check` accepts. This bound is
  /// the one that the solver proves for the first program. If a later program has no solution, the
  /// bound is the time of the fastest plan found. Without a program, it is the time to run each
  /// node once.
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
/// - plans that `Scheduler` makes from solutions of the integer program, with single decisions
///   improved.
///
/// The time of a scheduled solution may exceed its time in the program. The solution is then
/// excluded and the program solved again. This ends if no solution is faster than the best plan, or
/// if the gap is at most `milp.relative_gap`. It also ends after `milp.time_limit_s` for all
/// programs together. The greedy search takes up to `options.time_limit_s`. After each program,
/// improvement takes up to a quarter of `options.time_limit_s`. For steps of many hundred nodes, no
/// program is solved. Decisions are then changed at random for `milp.time_limit_s`. The plan is
/// never slower than the plan of `solve`, nor than `options.start`. Throws UserError as `solve`
/// does.
JointSolution solve_jointly(const Graph& graph, const SolveOptions& options,
                            const MilpOptions& milp);
/// Same, with `options.time_limit_s` for the greedy search, programs and improvement together.
JointSolution solve_jointly(const Graph& graph, const SolveOptions& options);

}  // namespace dovetail::plan
