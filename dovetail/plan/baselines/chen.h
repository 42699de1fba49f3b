#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dovetail/plan/baselines/stages.h"

/// Strategies of Chen et al. 2016 for recomputation. Forward keeps the results of some nodes
/// (checkpoints). A segment reaches from one checkpoint to the next. Backward runs the forward
/// nodes of a segment again when it reaches the segment.
namespace dovetail::plan {

/// Returns the number of forward nodes: nodes before the first one that computes a gradient.
int forward_nodes(const Graph& graph);

/// Nodes from which the strategies choose checkpoints. They are forward nodes. Both choices are
/// Checkmate's extensions of the strategies beyond chains.
/// - kAll: all forward nodes, as if the step were a chain.
/// - kArticulation: forward nodes that are articulation points. No forward node after such a node
///   reads a value computed before it.
enum class Candidates { kAll, kArticulation };
/// Returns the candidates, ascending.
std::vector<int> chen_candidates(const StageGraph& graph, Candidates which);

/// Returns every sqrt(n)-th of n candidates (Chen et al. 2016, section 4.2). sqrt(n) is rounded
/// down.
std::vector<int> sqrt_checkpoints(const std::vector<int>& candidates);

/// Visits forward nodes in order (algorithm 3 of Chen et al. 2016). Sums the bytes that the nodes
/// since the previous checkpoint compute. A candidate becomes a checkpoint if this sum, including
/// its own bytes, exceeds `segment_bytes`. If `segment_bytes` is below each node's bytes, every
/// candidate is a checkpoint.
std::vector<int> greedy_checkpoints(const StageGraph& graph, const std::vector<int>& candidates,
                                    int64_t segment_bytes);

/// Details in which implementations of the strategies differ.
struct ChenOptions {
  /// If true, no value is kept past its last reader. If false, checkpoints stay until the end of
  /// the step, and values of a segment stay until its backward is over. The code published with
  /// Checkmate corresponds to false.
  bool liveness = true;
  /// If true, gradients of a segment's own nodes are kept until the segment's backward is over. An
  /// earlier version of the code published with Checkmate does this.
  bool hold_gradients = false;
};

/// Returns the stages (plan/baselines/stages.h) for a set of checkpoints, with the minimum number
/// of runs. Checkpoints and gradients are kept. All values of a segment are kept while its forward
/// nodes run, and again while its backward nodes run. A node runs at most twice. Returns nullopt if
/// this requires a second run of a node that must not run again.
std::optional<Stages> stages_for(const StageGraph& graph, const std::vector<int>& checkpoints,
                                 const ChenOptions& options = {});

}  // namespace dovetail::plan
