#pragma once

#include <optional>
#include <vector>

#include "dovetail/plan/model/actions.h"
#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// A plan of recomputation alone as Checkmate writes it (Jain et al. 2020, section 4): stage t ends
/// with the first run of node t; before that, nodes below t may run again, each once and in order.
/// One stage for each node of the graph.
struct Stages {
  std::vector<std::vector<char>>
      runs;  ///< R: of each stage, for each node, whether it runs; every node in its own
  std::vector<std::vector<char>>
      keeps;  ///< S: of each stage, for each tensor, whether it is there when the stage begins
};

/// What a graph is to Checkmate. Its values are the storages that nodes make, each kept by itself
/// where a node makes several; what is resident when the step begins stays.
class StageGraph {
 public:
  explicit StageGraph(const Graph& graph);

  const Graph& graph() const { return graph_; }
  int nodes() const { return static_cast<int>(graph_.nodes.size()); }
  const std::vector<int>& values() const { return values_; }  ///< tensors, by their producer
  int producer(int value) const { return producer_[value]; }  ///< -1: no value
  const std::vector<int>& reads(int node) const {
    return reads_[node];
  }  ///< values that it reads or changes, each once
  const std::vector<int>& makes(int node) const { return makes_[node]; }
  const std::vector<int>& readers(int value) const { return readers_[value]; }  ///< ascending
  int last_use(int value) const {
    return last_use_[value];
  }  ///< a node; nodes() for what is there at the end
  /// Whether node i may run in stage t. Not again where it changes what it has not made, or must
  /// not run again, or where something that it reads or makes has been changed since.
  bool may_run(int t, int i) const { return i == t || (i < t && t <= last_run_[i]); }
  /// Inputs, parameters, state and what else is always there.
  int64_t resident_bytes() const { return resident_bytes_; }
  /// The least workspace of a node.
  int64_t least_workspace(int node) const;

 private:
  const Graph& graph_;
  std::vector<int> values_, producer_, last_use_, last_run_;
  std::vector<std::vector<int>> reads_, makes_, readers_;
  int64_t resident_bytes_ = 0;
};

/// No runs, and nothing kept, with each node in its own stage.
Stages no_stages(const StageGraph& stages);

/// The fewest runs for what is kept: a node runs in a stage where one of its values is kept from
/// the next on and was not before, or where a node that runs reads one that is not there. Nothing
/// if that asks for a run that may not be.
std::optional<Stages> runs_for(const StageGraph& graph, std::vector<std::vector<char>> keeps);

/// The actions: in each stage its runs in order, and each value freed after the last reader in the
/// stage unless it is kept; runs of what is there already are left out. `algorithms`: of each node.
Plan plan_of(const StageGraph& graph, const Stages& stages, const std::vector<int>& algorithms);

/// The most bytes of values that are held at a time, as Checkmate counts them: what is kept for
/// nobody, too. `check` releases a tensor when its last reader has ended, however late it is freed.
int64_t most_held_bytes(const StageGraph& graph, const Stages& stages);

/// The stages of a plan of computes and frees; nothing if it has other actions, or runs a node
/// twice in a stage.
std::optional<Stages> stages_of(const StageGraph& graph, const Plan& plan);

}  // namespace dovetail::plan
