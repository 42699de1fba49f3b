#pragma once

#include "dovetail/plan/model/actions.h"
#include "dovetail/plan/record/step_graph.h"

namespace dovetail::plan {

/// Adds algorithms to nodes that change parameters or state, such as optimizer updates. They run
/// the same operations on the same values, but find some of these tensors in the host tier. Such a
/// tensor needs no copy and no device memory. Names of the algorithms:
/// - "state on the host": finds state there that no other node uses, such as moments and master
///   weights
/// - "weights and state on the host": in addition, finds the parameters there that the node changes
///
/// Storages below kPagedBytes stay on the device, because they are never offloaded. Call this only
/// if the host tier is memory. In a file, these tensors would take unplanned memory during the
/// update.
void add_host_updates(const CapturedStep& step, StepGraph& graph);

/// Copies the measured time of the algorithm that `plan` ran to the node's other algorithms.
/// Applies to nodes that have algorithms with tensors on the host: such a node takes as long either
/// way.
void share_times(Graph& graph, const Plan& plan);

}  // namespace dovetail::plan
