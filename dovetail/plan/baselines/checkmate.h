#pragma once

#include <optional>
#include <vector>

#include "dovetail/plan/baselines/stages.h"
#include "dovetail/plan/solve/milp.h"

namespace dovetail::plan {

/// Checkmate's integer program of a step (Jain et al. 2020, section 4). It minimises the time of
/// all runs of nodes. Each node uses its minimum-workspace algorithm; the workspace counts while
/// the node runs. Stages and values are defined in plan/baselines/stages.h. Variables, with the
/// paper's names (t: stage, i: node, v: value):
/// - R[t][i] is 1 if node i runs in stage t.
/// - S[t][v] is 1 if value v is in memory when stage t begins.
/// - FREE[t][i, v] is 1 if value v is freed after node i of stage t.
/// - U[t][i] is the memory in use at node i of stage t, by recursion over i.
///
/// Two things differ from the paper:
/// - If a node computes several values, each is kept or freed separately.
/// - FREE is a product of 0-1 factors. In the paper, one row has the sum of the factors. Here, each
///   factor bounds FREE in a row of its own. The integer points are the same, and the linear
///   relaxation is tighter.
class CheckmateProgram {
 public:
  /// Limits device memory to `budget_bytes`. The graph must outlive this object.
  CheckmateProgram(const StageGraph& graph, double budget_bytes);

  LinearProgram& program() { return program_; }
  /// Converts an objective value of the program to the sum of the durations of all runs, in
  /// seconds.
  double seconds(double objective) const { return objective * unit_s_; }
  /// Returns the stages that a solution describes. `values` has one value per column of the
  /// program, here and in keeps().
  Stages stages(const std::vector<double>& values) const;
  /// Returns S as [stage][tensor] (Stages::keeps), with values from 0 to 1.
  std::vector<std::vector<double>> keeps(const std::vector<double>& values) const;
  /// Returns the column values that describe the stages.
  std::vector<double> point(const Stages& stages) const;

 private:
  // Column of FREE for a value after a node.
  struct Freed {
    int node, value, column;
  };
  // Column of R; -1: node i never runs in stage t.
  int runs(int t, int i) const { return runs_[t][i]; }
  // Column of S; -1: value v is never kept when stage t begins.
  int keeps(int t, int v) const { return keeps_[t][v]; }
  double mass(double bytes) const { return bytes / unit_bytes_; }  // in the program's unit
  double made(int node) const;                                     // bytes that the node computes
  void add_columns();
  void add_order();
  void add_frees(int t);
  void add_memory(int t);

  const StageGraph& graph_;
  double budget_bytes_, unit_s_ = 1, unit_bytes_ = 1;
  LinearProgram program_;
  std::vector<std::vector<int>> runs_, keeps_, used_;  // columns of R, S and U
  std::vector<std::vector<Freed>> freed_;              // FREE, per stage
};

/// Solution of Checkmate's program, or of its rounding.
struct CheckmateSolution {
  Stages stages;
  double time_s = 0;  ///< sum of the durations of all runs
  /// Proven lower bound on the time_s of every solution. It is at least the time to run each node
  /// once. It is 0 in the result of `round_checkmate`.
  double bound_s = 0;
  double seconds = 0;  ///< duration of solving
};

/// Returns the best solution found. Returns nullopt if none exists, or if none is found within the
/// time limit. `start` has initial stages for the solver, used if they fit the budget.
std::optional<CheckmateSolution> solve_checkmate(const Graph& graph, const MilpOptions& options,
                                                 const std::optional<Stages>& start = {});

/// Two-phase rounding (section 5 of the paper). Solves the linear relaxation for (1 - epsilon)
/// times the budget, rounds S at 0.5 and adds the minimum number of runs. Returns nullopt if the
/// result does not fit the budget. The paper does not exclude that case either.
std::optional<CheckmateSolution> round_checkmate(const Graph& graph, const MilpOptions& options,
                                                 double epsilon = 0.1);

}  // namespace dovetail::plan
