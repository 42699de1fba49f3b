#pragma once

#include <optional>
#include <vector>

#include "dovetail/plan/model/actions.h"
#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// Plan with recomputation only, in Checkmate's form (Jain et al. 2020, section 4). Stage t ends
/// with the first run of node t. Before that, nodes below t may run again, each once and in order.
/// There is one stage per node of the graph.
struct Stages {
  /// R[stage][node]: true if the node runs in the stage. Each node runs in its own stage.
  std::vector<std::vector<char>> runs;
  /// S[stage][tensor]: true if the tensor is in memory when the stage begins.
  std::vector<std::vector<char>> keeps;
};

/// View of a graph for Checkmate. Its values are the storages that nodes compute. If a node
/// computes several, each is a separate value. Storages that are resident when the step begins stay
/// resident.
class StageGraph {
 public:
  explicit StageGraph(const Graph& graph);

  const Graph& graph() const { return graph_; }
  int nodes() const { return static_cast<int>(graph_.nodes.size()); }
  const std::vector<int>& values() const { return values_; }  ///< tensors, ordered by producer
  int producer(int value) const { return producer_[value]; }  ///< -1: not a value
  const std::vector<int>& reads(int node) const {
    return reads_[node];
  }  ///< values that it reads or changes, each once
  const std::vector<int>& makes(int node) const { return makes_[node]; }
  const std::vector<int>& readers(int value) const {
    return readers_[value];
  }  ///< nodes, ascending
  int last_use(int value) const {
    return last_use_[value];
  }  ///< a node; nodes() if the value is needed at the end
  /// Returns true if node i may run in stage t. A node may not run again if it changes a tensor
  /// that it has not computed, or is marked run-once. It may also not run again after a change of a
  /// tensor that it reads or computes.
  bool may_run(int t, int i) const { return i == t || (i < t && t <= last_run_[i]); }
  /// Bytes of inputs, parameters, state and other storages that are always resident.
  int64_t resident_bytes() const { return resident_bytes_; }
  /// Returns the smallest workspace of a node, in bytes.
  int64_t least_workspace(int node) const;

 private:
  const Graph& graph_;
  std::vector<int> values_, producer_, last_use_, last_run_;
  std::vector<std::vector<int>> reads_, makes_, readers_;
  int64_t resident_bytes_ = 0;
};

/// Returns stages in which each node runs only in its own stage and nothing is kept.
Stages no_stages(const StageGraph& stages);

/// Returns the minimum of runs that `keeps` requires. A node runs in a stage if one of its values
/// is kept only from the next stage on. It also runs if another node of the stage reads one of its
/// values that is not in memory. Returns nullopt if a required run is not allowed.
std::optional<Stages> runs_for(const StageGraph& graph, std::vector<std::vector<char>> keeps);

/// Returns the actions of the stages. Each stage has its runs in order. Each value is freed after
/// its last reader in the stage unless it is kept. Runs whose values are already in memory are
/// skipped. `algorithms` has one entry per node.
Plan plan_of(const StageGraph& graph, const Stages& stages, const std::vector<int>& algorithms);

/// Returns the maximum bytes of values held at the same time, as Checkmate counts them. This
/// includes values that are kept without a reader. `check` counts less: it releases a tensor when
/// its last reader has ended, however late the free is.
int64_t most_held_bytes(const StageGraph& graph, const Stages& stages);

/// Returns the stages of a plan of computes and frees. Returns nullopt if the plan has other
/// actions, or runs a node twice in a stage.
std::optional<Stages> stages_of(const StageGraph& graph, const Plan& plan);

}  // namespace dovetail::plan
