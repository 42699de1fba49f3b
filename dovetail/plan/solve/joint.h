#pragma once

#include "dovetail/plan/solve/milp.h"
#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {

/// Result of the integer program (joint_program.h) of a step.
struct JointReport {
  /// Size of the first program. 0 if no program was needed, or if none could be solved in time.
  int columns = 0, rows = 0;
  int programs = 0;      ///< programs solved, each without the decisions of previous solutions
  bool started = false;  ///< the solver started from the greedy plan
  /// Lower bound on the expected time of the plans that `Scheduler` makes from the program's
  /// decisions. It is the bound that the solver proved before any decisions were excluded. Once no
  /// decisions are left, it is the time of the fastest plan. Without a program, it is the time of
  /// every node once. In these plans, storages that are not in the way of the budget stay resident.
  /// Solution::bound_s bounds every plan that `check` accepts.
  double bound_s = 0;
  double gap = 1;      ///< (expected_s - bound_s) / expected_s of the plan
  double seconds = 0;  ///< to build and solve programs
};

struct JointSolution {
  Solution solution;  ///< `complete` if the gap is at most `milp.relative_gap`
  JointReport report;
};

/// Returns the plan with the minimum expected time among candidates within `graph.budget_bytes`.
/// All techniques of `options` are decided at once. Candidates are
/// - the plan of `solve`,
/// - plans found by random changes of decisions while programs are being solved,
/// - solutions of the integer program, scheduled, with single decisions improved.
///
/// If the program expects less of a solution than its schedule takes, the solution is excluded and
/// the program solved again. This ends if no solution is better, if the gap is at most
/// `milp.relative_gap`, or after `milp.time_limit_s` for all programs together. The greedy search
/// takes up to `options.time_limit_s`. Improvement may take a quarter of that for each program.
/// Steps of many hundred nodes have no program; random changes then take its time. The plan is
/// never slower than the plan of `solve`, nor than `options.start`. Throws UserError as `solve`
/// does.
JointSolution solve_jointly(const Graph& graph, const SolveOptions& options,
                            const MilpOptions& milp);
/// Same, with `options.time_limit_s` for everything.
JointSolution solve_jointly(const Graph& graph, const SolveOptions& options);

}  // namespace dovetail::plan
