#pragma once

#include <optional>
#include <vector>

#include "dovetail/plan/baselines/stages.h"
#include "dovetail/plan/solve/milp.h"

namespace dovetail::plan {

/// Checkmate's integer program of a step (Jain et al. 2020, section 4): R and S of every stage,
/// memory by the recursion of U over the nodes of a stage with FREE, minimising the time of all
/// runs, each node by its algorithm of least workspace; that workspace counts while the node runs.
/// As published, but for two things: each of several values that a node makes is kept by itself,
/// and FREE is at most each of the factors that it is the product of, one row each, where the paper
/// adds them up: the same integer points, and less between them.
class CheckmateProgram {
 public:
  /// Memory within `budget_bytes`. The graph must outlive this.
  CheckmateProgram(const StageGraph& graph, double budget_bytes);

  LinearProgram& program() { return program_; }
  double seconds(double objective) const { return objective * unit_s_; }
  Stages stages(const std::vector<double>& values) const;
  /// Of each stage and tensor the value of S, between 0 and 1.
  std::vector<std::vector<double>> keeps(const std::vector<double>& values) const;
  std::vector<double> point(const Stages& stages) const;

 private:
  struct Freed {
    int node, value, column;
  };
  int runs(int t, int i) const { return runs_[t][i]; }    // -1: never
  int keeps(int t, int v) const { return keeps_[t][v]; }  // -1: never
  double mass(double bytes) const { return bytes / unit_bytes_; }
  double made(int node) const;
  void add_columns();
  void add_order();
  void add_frees(int t);
  void add_memory(int t);

  const StageGraph& graph_;
  double budget_bytes_, unit_s_ = 1, unit_bytes_ = 1;
  LinearProgram program_;
  std::vector<std::vector<int>> runs_, keeps_, used_;  // columns
  std::vector<std::vector<Freed>> freed_;              // of each stage
};

struct CheckmateSolution {
  Stages stages;
  double time_s = 0;   ///< of all runs
  double bound_s = 0;  ///< proven, at least every node once; 0 for a rounding
  double seconds = 0;  ///< of solving
};

/// The best solution found; nothing where there is none, or the time is over before one is found.
/// `start`: stages to begin from, if they fit.
std::optional<CheckmateSolution> solve_checkmate(const Graph& graph, const MilpOptions& options,
                                                 const std::optional<Stages>& start = {});

/// Two-phase rounding (their section 5): the linear relaxation within (1 - epsilon) of the budget,
/// S rounded at a half, the fewest runs for that. Nothing where the result does not fit, which the
/// paper does not exclude either.
std::optional<CheckmateSolution> round_checkmate(const Graph& graph, const MilpOptions& options,
                                                 double epsilon = 0.1);

}  // namespace dovetail::plan
