#pragma once

#include <cstdint>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {

/// Graph of a step that was recorded with `samples` samples per batch.
struct Sampled {
  int64_t samples = 0;
  Graph graph;
};

/// Returns the graph of the step with another number of samples on this machine. The bytes of every
/// tensor and workspace, and the always resident bytes, lie on the line through two recordings. In
/// contrast, at_batch (plan/record/batch.h) leaves out this machine's workspaces. Throws UserError
/// if the recordings differ in more than numbers. Times are copied from `b`.
Graph with_samples(const Sampled& a, const Sampled& b, int64_t samples);

/// Returns the peak memory of a step that keeps all tensors on the device until their last use. The
/// graph need not have times.
int64_t keep_all_bytes(const Graph& graph);

/// Returns the error for a budget below the floor (struct Floor), the minimum memory of any plan.
/// It names the operation that needs the floor, its layer, and the bytes of its inputs, outputs and
/// workspace. `what` names the source of the budget in the message, for example "memory.budget".
/// `help` says what to do.
UserError below_floor(const Graph& graph, const Floor& floor, const std::string& what,
                      const std::string& help);

/// Returns bytes as text in a binary unit. Examples: "3.1 GiB", "560 B".
std::string binary_size(int64_t bytes);

}  // namespace dovetail::plan
