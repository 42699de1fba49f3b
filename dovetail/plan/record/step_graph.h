#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dovetail/plan/model/compression.h"
#include "dovetail/plan/model/graph.h"
#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// Place of an allocation inside an operation. This is a storage that the plan places, or, if
/// `storage` is -1, an offset in the node's workspace.
struct AllocationPlace {
  int storage = -1;
  int64_t workspace_offset = 0;
  int64_t bytes = 0;
};

/// Places of everything that the operations of a node allocate.
struct NodeMemory {
  /// Per operation: the places of its allocations, in order.
  std::vector<std::vector<AllocationPlace>> places;
  /// Storages in the workspace: index, offset.
  std::vector<std::pair<int, int64_t>> local;
  int64_t workspace_bytes = 0;
};

/// Alternative way to run a node. Its operations compute the same storages from the same inputs,
/// but bits may differ.
struct NodeVariant {
  std::vector<CapturedOperation> operations;
  NodeMemory memory;
};

/// Node of the graph. Operations [first, last) of the captured step are its algorithm 0. Algorithm
/// a > 0 is variants[a - 1].
struct StepNode {
  int first = 0, last = 0;
  NodeMemory memory;
  std::vector<NodeVariant> variants;
};

/// Captured step as a graph for planning. Operations that change results of the previous operation
/// in place share its node, so that the node can be recomputed. A storage that only one node uses
/// is part of the node's workspace. Times are recorded times until a profile provides better ones.
struct StepGraph {
  Graph graph;  ///< the caller sets its budget and bandwidth
  std::vector<StepNode> nodes;
  std::vector<int>
      tensor_of_storage;  ///< index into graph.tensors; -1: part of a workspace, or a constant
  std::vector<int> storage_of_tensor;
  std::vector<PackedForm> forms;  ///< one per codec of the graph
};
StepGraph graph_of(const CapturedStep& step);

/// Assigns workspace offsets to all allocations by the operations of one node that are not storages
/// of the graph.
NodeMemory place_allocations(std::span<const CapturedOperation> operations,
                             const std::vector<int>& tensor_of_storage);

/// Operations of one algorithm of a node, and their memory.
struct NodeRun {
  std::span<const CapturedOperation> operations;
  const NodeMemory& memory;
};
NodeRun run_of(const CapturedStep& step, const StepNode& node, int algorithm);

}  // namespace dovetail::plan
