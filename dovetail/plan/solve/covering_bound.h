#pragma once

#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {

/// Lower bound on the expected time of every plan within a budget. A linear program of this size
/// proves it.
struct CoveringBound {
  double seconds = 0;
  int columns = 0, rows = 0;  ///< 0: everything fits, so that no program was needed
};

/// Finds a bound for steps that are too large for the integer program
/// (plan/solve/joint_program.h). The linear program has a share for each gap between two uses of a
/// tensor, and for each treatment. At up to 64 nodes where memory is short, the shares must free
/// the excess over the budget. A share costs at least:
/// - offloaded: the delay of computing by its copies. Both directions may copy while nothing
///   computes, so a delay above half of the copies' time counts as half.
/// - recomputed: its node by the fastest algorithm. Outputs of a node may share a run.
/// - packed: its unpacking.
///
/// Each node also takes the time of its fastest algorithm and the memory of its smallest workspace.
/// Waits and chains of recomputations are left out. If the time limit ends the program, the bound
/// is each node once.
CoveringBound covering_bound(const Graph& graph, const SolveOptions& options, double time_limit_s);

}  // namespace dovetail::plan
