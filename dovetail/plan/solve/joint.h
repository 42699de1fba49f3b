#pragma once

#include <string>

#include "dovetail/plan/solve/milp.h"
#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {

/// Report on solving the integer program (plan/solve/joint_program.h) of a step.
struct JointReport {
  /// Number of columns and rows of the first program; 0 if no program was needed.
  int columns = 0, rows = 0;
  /// True if the step is too large for the integer program. A linear program then proves the bound
  /// (plan/solve/covering_bound.h).
  bool too_large = false;
  /// Number of programs solved. Each program after the first excludes the decisions of the previous
  /// solutions.
  int programs = 0;
  bool started = false;  ///< the solver started from the plan of the greedy search (`solve`)
  /// Lower bound on the expected time of the plans that `Scheduler` makes from the program's
  /// decisions. In these plans, a storage stays resident if it need not leave the device to fit the
  /// budget. In contrast, Solution::bound_s bounds every plan that `check` accepts. Value:
  /// - without a program: the time to run each node once,
  /// - if the step is too large: the bound of the linear program,
  /// - if a program has no solution: the time of the fastest plan found,
  /// - otherwise: the bound that the solver proves for the first program.
  double bound_s = 0;
  /// Relative gap: (expected_s - bound_s) / expected_s, where expected_s is the expected time of
  /// the plan.
  double gap = 1;
  double seconds = 0;  ///< time to build and solve programs
};
/// Returns a line about a plan of `expected_s` seconds: its distance to the bound, and what proves
/// the bound. Example: "within 2.1 % of the bound that an integer program of 3210 columns proves".
std::string bound_in_words(const JointReport& report, double expected_s);

/// Plan of `solve_jointly`, and how it was found.
struct JointSolution {
  Solution solution;  ///< `complete`: JointReport::gap is at most `milp.relative_gap`
  JointReport report;
};

/// Returns the fastest plan found within `graph.budget_bytes`, by expected time. Decides all
/// techniques of `options` together. The plan is never slower than the plan of `solve`, nor than
/// `options.start`. Throws UserError as `solve` does.
///
/// Steps:
/// 1. The greedy search (`solve`) finds a first plan.
/// 2. The solver solves the integer program. Meanwhile, random changes are tried on the best plan.
/// 3. `Scheduler` makes a plan from the solution. Its decisions are then improved (`improve`).
/// 4. The program excludes the decisions of the solution, and the search goes on at step 2.
/// 5. Random changes are tried in what is left of the time for step 3.
///
/// For steps of many hundred nodes, no integer program is solved. Step 2 is then only random
/// changes, while a linear program finds a bound. Steps 3 and 4 are left out.
///
/// The search ends if
/// - the relative gap (JointReport::gap) is at most `milp.relative_gap`,
/// - the program has no solution that is faster than the best plan,
/// - or the time is over.
///
/// Time limits:
/// - step 1: `options.time_limit_s`
/// - step 2: `milp.time_limit_s` for all programs together
/// - step 3: a quarter of `options.time_limit_s` each time, `options.time_limit_s` in all
JointSolution solve_jointly(const Graph& graph, const SolveOptions& options,
                            const MilpOptions& milp);
/// Same, with `options.time_limit_s` for all steps together.
JointSolution solve_jointly(const Graph& graph, const SolveOptions& options);

}  // namespace dovetail::plan
