#pragma once

#include <optional>
#include <vector>

#include "dovetail/plan/model/actions.h"
#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// Plan with recomputation only, in Checkmate's form (Jain et al. 2020, section 4). There is one
/// stage per node of the graph. Stage t ends with the first run of node t. Before that, nodes below
/// t may run again in stage t, each once and in order.
struct Stages {
  /// R[stage][node]: true if the node runs in the stage. Node t runs in stage t.
  std::vector<std::vector<char>> runs;
  /// S[stage][tensor]: true if the tensor is in memory when the stage begins.
  std::vector<std::vector<char>> keeps;
};

/// View of a graph for Checkmate. Its values are the storages that nodes compute, given by their
/// tensor index. If a node computes several, each is a separate value. Storages that are resident
/// when the step begins stay resident and are no values.
class StageGraph {
 public:
  explicit StageGraph(const Graph& graph);

  const Graph& graph() const { return graph_; }
  int nodes() const { return static_cast<int>(graph_.nodes.size()); }
  /// Returns all values, ordered by producer.
  const std::vector<int>& values() const { return values_; }
  /// Returns the node that computes the tensor `value`; -1 if the tensor is none of values().
  int producer(int value) const { return producer_[value]; }
  /// Returns the values that the node reads or changes, each once.
  const std::vector<int>& reads(int node) const { return reads_[node]; }
  /// Returns the values that the node computes.
  const std::vector<int>& makes(int node) const { return makes_[node]; }
  /// Returns the nodes that read or change a value, ascending.
  const std::vector<int>& readers(int value) const { return readers_[value]; }
  /// Returns the last node that uses a value; nodes() if the value is needed after the step.
  int last_use(int value) const { return last_use_[value]; }
  /// Returns true if node i may run in stage t. A node that must run once (GraphNode::runs_once)
  /// runs only in its own stage. Node i also must not run again once another node has changed a
  /// tensor that node i reads or computes.
  bool may_run(int t, int i) const { return i == t || (i < t && t <= last_run_[i]); }
  /// Returns the bytes of inputs, parameters, state and other storages that are always resident.
  int64_t resident_bytes() const { return resident_bytes_; }
  /// Returns the smallest workspace of the node's algorithms, in bytes.
  int64_t smallest_workspace(int node) const;

 private:
  const Graph& graph_;
  std::vector<int> values_, producer_, last_use_, last_run_;
  std::vector<std::vector<int>> reads_, makes_, readers_;
  int64_t resident_bytes_ = 0;
};

/// Returns stages in which each node runs only in its own stage and nothing is kept.
Stages no_stages(const StageGraph& stages);

/// Returns stages with the given `keeps` (S) and the minimum of runs that it requires. A node must
/// run in a stage in two cases:
/// - One of its values is in memory when the next stage begins, but not when this stage begins.
/// - Another node that runs in the stage reads one of its values that `keeps` does not have in
///   memory.
///
/// Returns nullopt if a node must run in a stage in which it may not run (may_run).
std::optional<Stages> runs_for(const StageGraph& graph, std::vector<std::vector<char>> keeps);

/// Converts stages to a plan. Each stage has its runs in order. Each value is freed after its last
/// reader in the stage unless it is kept for the next stage. The plan omits a repeated run if each
/// of its values is already in memory or no longer needed. `algorithms` has one index per node.
Plan plan_of(const StageGraph& graph, const Stages& stages, const std::vector<int>& algorithms);

/// Returns the maximum bytes of values held at the same time, as Checkmate counts them. This
/// includes values that are kept without a reader. `check` counts less: it releases a tensor when
/// its last reader has ended, however late the free is.
int64_t peak_held_bytes(const StageGraph& graph, const Stages& stages);

/// Converts a plan of computes and frees to stages. Returns nullopt if the plan has other actions,
/// or runs a node twice in a stage.
std::optional<Stages> stages_of(const StageGraph& graph, const Plan& plan);

}  // namespace dovetail::plan
