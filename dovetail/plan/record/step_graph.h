#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dovetail/plan/model/compression.h"
#include "dovetail/plan/model/graph.h"
#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// Where an allocation inside an operation goes: to a storage that the plan places, or to an offset
/// of the node's workspace.
struct AllocationPlace {
  int storage = -1;
  int64_t workspace_offset = 0;
  int64_t bytes = 0;
};

/// Where everything lies that the operations of a node allocate.
struct NodeMemory {
  std::vector<std::vector<AllocationPlace>>
      places;  ///< of each operation, its allocations in order
  std::vector<std::pair<int, int64_t>>
      local;  ///< storages that live in the workspace: index, offset
  int64_t workspace_bytes = 0;
};

/// Another way to run a node: operations that make the same storages out of the same, to other bits
/// perhaps.
struct NodeVariant {
  std::vector<CapturedOperation> operations;
  NodeMemory memory;
};

/// A node of the graph: operations [first, last) of the captured step, which are algorithm 0 of the
/// graph's node; algorithm a of it is variants[a - 1].
struct StepNode {
  int first = 0, last = 0;
  NodeMemory memory;
  std::vector<NodeVariant> variants;
};

/// A captured step as a graph for planning. Operations that change in place what the one before
/// them made are one node with it, so that it can be run again; what only one node uses lies in its
/// workspace. Times are those of the recording until a profile gives better ones.
struct StepGraph {
  Graph graph;  ///< its budget and bandwidth are to be filled in
  std::vector<StepNode> nodes;
  std::vector<int> tensor_of_storage;  ///< index into graph.tensors, or -1: local, or a constant
  std::vector<int> storage_of_tensor;
  std::vector<PackedForm> forms;  ///< of each codec of the graph
};
StepGraph graph_of(const CapturedStep& step);

/// Offsets in a workspace for all that these operations of one node allocate and that is no storage
/// of the graph.
NodeMemory place_allocations(std::span<const CapturedOperation> operations,
                             const std::vector<int>& tensor_of_storage);

/// What an algorithm of a node runs, and where that lies.
struct NodeRun {
  std::span<const CapturedOperation> operations;
  const NodeMemory& memory;
};
NodeRun run_of(const CapturedStep& step, const StepNode& node, int algorithm);

}  // namespace dovetail::plan
