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

/// Returns the graph of the step with another number of samples on this machine. Each number of
/// bytes lies on the line through its values in `a` and `b`. This applies to tensors, workspaces
/// and Graph::base_bytes. In contrast, the result of at_batch (plan/record/batch.h) has no
/// workspaces. Throws UserError if the nodes of `a` and `b` differ, or if their tensors differ in
/// more than bytes. The result is `without_times`.
Graph with_samples(const Sampled& a, const Sampled& b, int64_t samples);

/// Returns the graph with the same time for all nodes and the same rate for copies and codecs. Two
/// recordings of a step then give the same plan. Copies are so slow that they end late: this is
/// when they need the most memory.
Graph without_times(Graph graph);

/// Returns the peak memory of a step that keeps all tensors on the device until their last use. The
/// graph need not have times.
int64_t keep_all_bytes(const Graph& graph);

/// Returns the error for a budget below the floor (struct Floor), the minimum memory of any plan.
/// The error names the operation that needs this memory, its layer, and the bytes of its inputs,
/// outputs and workspace. `what` names the source of the budget in the message, for example
/// "memory.budget". `help` says what to do.
UserError below_floor(const Graph& graph, const Floor& floor, const std::string& what,
                      const std::string& help);

/// Returns bytes as text in a binary unit. Examples: "3.1 GiB", "560 B".
std::string binary_size(int64_t bytes);

}  // namespace dovetail::plan
