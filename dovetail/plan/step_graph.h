#pragma once

#include <cstdint>
#include <vector>

#include "dovetail/plan/captured_step.h"
#include "dovetail/plan/graph.h"

namespace dovetail::plan {

/// Where an allocation inside an operation goes: to a storage that the plan places, or to an offset of the node's
/// workspace.
struct AllocationPlace {
  int storage = -1;
  int64_t workspace_offset = 0;
  int64_t bytes = 0;
};

/// A node of the graph: operations [first, last) of the captured step.
struct StepNode {
  int first = 0, last = 0;
  std::vector<std::vector<AllocationPlace>> places;  ///< of each operation, its allocations in order
  std::vector<std::pair<int, int64_t>> local;        ///< storages that live in the workspace: index, offset
  int64_t workspace_bytes = 0;
};

/// A captured step as a graph for planning. Operations that change in place what the one before them made are one node
/// with it, so that it can be run again; what only one node uses lies in its workspace. Times are those of
/// the recording until a profile gives better ones.
struct StepGraph {
  Graph graph;  ///< its budget and bandwidth are to be filled in
  std::vector<StepNode> nodes;
  std::vector<int> tensor_of_storage;  ///< index into graph.tensors, or -1: local, or a constant
  std::vector<int> storage_of_tensor;
};
StepGraph graph_of(const CapturedStep& step);

}  // namespace dovetail::plan
