#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dovetail/plan/baselines/stages.h"

namespace dovetail::plan {

/// Nodes that Chen's strategies choose checkpoints from, ascending: of the forward nodes, which are
/// those before the first that makes a gradient, either all, which takes the step for a chain, or
/// those without which the rest of them falls into two parts (articulation points; both are
/// Checkmate's ways to use the strategies beyond chains).
enum class Candidates { kAll, kArticulation };
std::vector<int> chen_candidates(const StageGraph& graph, Candidates which);

/// Every sqrt(n)-th of n candidates (Chen et al. 2016, section 4.2), rounded down.
std::vector<int> sqrt_checkpoints(const std::vector<int>& candidates);

/// In the order of the forward nodes, the candidate at which more than `segment_bytes` have been
/// made since the last one (their algorithm 3). With segments that nothing bounds from below there
/// is a checkpoint at every candidate.
std::vector<int> greedy_checkpoints(const StageGraph& graph, const std::vector<int>& candidates,
                                    int64_t segment_bytes);

struct ChenOptions {
  /// Nothing is kept past its last reader. Without: checkpoints stay to the end of the step, and
  /// what a segment keeps until its backward is over, as in the code published with Checkmate.
  bool liveness = true;
  /// Gradients of a segment's own nodes stay until its backward is over, as in an earlier state of
  /// that code.
  bool hold_gradients = false;
};

/// What is kept for a set of checkpoints, and the fewest runs for it: checkpoints, everything of a
/// segment (from one checkpoint to the next) while its forward nodes run and again while its
/// backward ones do, and gradients. A node runs at most once again. Nothing if that needs a run
/// that may not be.
std::optional<Stages> stages_for(const StageGraph& graph, const std::vector<int>& checkpoints,
                                 const ChenOptions& options = {});

}  // namespace dovetail::plan
