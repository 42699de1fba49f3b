#pragma once

#include <cstdint>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {

/// A step recorded with so many samples.
struct Sampled {
  int64_t samples = 0;
  Graph graph;
};

/// The step with another number of samples on this machine: the bytes of every tensor and
/// workspace, and what is always resident, on the line through two recordings (at_batch,
/// plan/record/batch.h, leaves this machine's workspaces out). UserError where these differ in more
/// than numbers. Times are those of `b`.
Graph with_samples(const Sampled& a, const Sampled& b, int64_t samples);

/// What a step takes at most with everything kept; of a graph without times too.
int64_t keep_all_bytes(const Graph& graph);

/// That a budget is below the floor: the operation that needs it, its layer, and what of it are
/// inputs, outputs and workspace. `what` says what set the budget: "memory.budget".
UserError below_floor(const Graph& graph, const Floor& floor, const std::string& what,
                      const std::string& help);

/// "3.1 GiB", "560 B".
std::string binary_size(int64_t bytes);

}  // namespace dovetail::plan
