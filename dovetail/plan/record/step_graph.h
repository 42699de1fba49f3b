#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dovetail/plan/model/compression.h"
#include "dovetail/plan/model/graph.h"
#include "dovetail/plan/record/captured_step.h"

/// Graph of a captured step, for planning, and the memory that the operations of its nodes need.
namespace dovetail::plan {

/// Place for one allocation of an operation. If `storage` is at least 0, the plan gives that
/// storage an address. If it is -1, the allocation is at an offset in the node's workspace.
struct AllocationPlace {
  int storage = -1;
  int64_t workspace_offset = 0;
  int64_t bytes = 0;
};

/// Places of all allocations by the operations of a node.
struct NodeMemory {
  /// Per operation: places of its allocations, in the order in which it allocates.
  std::vector<std::vector<AllocationPlace>> places;
  /// Storages that are part of the workspace: (index, offset).
  std::vector<std::pair<int, int64_t>> local;
  int64_t workspace_bytes = 0;
};

/// Alternative way to run a node. Its operations compute the same storages from the same inputs,
/// but bits may differ.
struct NodeVariant {
  std::vector<CapturedOperation> operations;
  NodeMemory memory;
};

/// Operations of a node of the graph. Its algorithm 0 runs operations [first, last) of the captured
/// step. Algorithm a > 0 runs variants[a - 1].
struct StepNode {
  int first = 0, last = 0;
  NodeMemory memory;
  std::vector<NodeVariant> variants;
};

/// Captured step as a graph for planning. Usually each operation has its own node. An operation
/// joins the previous node if it changes, in place, only storages that this node created. As a node
/// of its own, it would prevent recomputation of the previous node. A storage that only one node
/// uses is part of the node's workspace. Durations come from the recording until a profile provides
/// better ones.
struct StepGraph {
  Graph graph;                  ///< the caller sets budget and bandwidth
  std::vector<StepNode> nodes;  ///< one per node of `graph`
  /// Per storage of the captured step: index into graph.tensors. -1: part of a workspace, or fixed
  /// (CapturedStorage::is_fixed).
  std::vector<int> tensor_of_storage;
  /// Per tensor of `graph`: index into CapturedStep::storages.
  std::vector<int> storage_of_tensor;
  std::vector<PackedForm> forms;  ///< one per codec of `graph`
};
/// Builds the graph of a captured step. Each node has one algorithm.
StepGraph graph_of(const CapturedStep& step);

/// Assigns offsets in a node's workspace to all allocations by its operations that are not tensors
/// of the graph.
NodeMemory place_allocations(std::span<const CapturedOperation> operations,
                             const std::vector<int>& tensor_of_storage);

/// Operations that one algorithm of a node runs, and their memory.
struct NodeRun {
  std::span<const CapturedOperation> operations;
  const NodeMemory& memory;
};
/// Returns the operations and memory of a node for an algorithm (an index).
NodeRun run_of(const CapturedStep& step, const StepNode& node, int algorithm);

}  // namespace dovetail::plan
