#pragma once

#include <optional>
#include <vector>

#include "dovetail/plan/baselines/stages.h"
#include "dovetail/plan/solve/milp.h"

namespace dovetail::plan {

/// Checkmate's integer program of a step (Jain et al. 2020, section 4). It minimises the time of
/// all runs. Each node uses its minimum-workspace algorithm; the workspace counts while the node
/// runs. Variables, with the paper's names:
/// - R: a node runs in a stage.
/// - S: a value is kept when a stage begins.
/// - FREE: a value is freed after a node of a stage.
/// - U: memory in use, by recursion over the nodes of a stage.
///
/// Two things differ from the paper. If a node makes several values, each is kept separately. FREE
/// is a product of factors. Here each factor bounds it in a row of its own, where the paper adds
/// the factors up. The integer points are the same, and the linear relaxation is tighter.
class CheckmateProgram {
 public:
  /// Limits memory to `budget_bytes`. The graph must outlive this object.
  CheckmateProgram(const StageGraph& graph, double budget_bytes);

  LinearProgram& program() { return program_; }
  double seconds(double objective) const { return objective * unit_s_; }
  Stages stages(const std::vector<double>& values) const;
  /// S as [stage][tensor], each value between 0 and 1.
  std::vector<std::vector<double>> keeps(const std::vector<double>& values) const;
  std::vector<double> point(const Stages& stages) const;

 private:
  struct Freed {
    int node, value, column;
  };
  int runs(int t, int i) const { return runs_[t][i]; }    // column; -1: it never runs
  int keeps(int t, int v) const { return keeps_[t][v]; }  // column; -1: it is never kept
  double mass(double bytes) const { return bytes / unit_bytes_; }
  double made(int node) const;
  void add_columns();
  void add_order();
  void add_frees(int t);
  void add_memory(int t);

  const StageGraph& graph_;
  double budget_bytes_, unit_s_ = 1, unit_bytes_ = 1;
  LinearProgram program_;
  std::vector<std::vector<int>> runs_, keeps_, used_;  // columns of R, S and U
  std::vector<std::vector<Freed>> freed_;              // per stage
};

struct CheckmateSolution {
  Stages stages;
  double time_s = 0;   ///< sum of all runs
  double bound_s = 0;  ///< proven, at least the time of every node once; 0 after rounding
  double seconds = 0;  ///< solve time
};

/// Returns the best solution found. Returns nullopt if there is none, or if the time is over before
/// one is found. `start`: initial stages for the solver, used if they fit.
std::optional<CheckmateSolution> solve_checkmate(const Graph& graph, const MilpOptions& options,
                                                 const std::optional<Stages>& start = {});

/// Two-phase rounding (section 5 of the paper). Solves the linear relaxation within (1 - epsilon)
/// of the budget, rounds S at 0.5 and adds the minimum number of runs. Returns nullopt if the
/// result does not fit. The paper does not exclude that case either.
std::optional<CheckmateSolution> round_checkmate(const Graph& graph, const MilpOptions& options,
                                                 double epsilon = 0.1);

}  // namespace dovetail::plan
