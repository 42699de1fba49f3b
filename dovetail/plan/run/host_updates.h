#pragma once

#include "dovetail/plan/model/actions.h"
#include "dovetail/plan/record/step_graph.h"

namespace dovetail::plan {

/// Adds algorithms to nodes that change parameters or state, such as optimizer updates. The added
/// algorithms run the same operations on the same values. They read and change some parameters or
/// state in the host tier (plan/device/host_tier.h). A tensor that is changed there needs no copy
/// and no device memory. Names of the algorithms, and the tensors that they change in the host
/// tier:
/// - "state on the host": state that no other node uses, such as moments and master weights
/// - "weights and state on the host": this state, and the parameters that the node changes
///
/// Storages below kPagedBytes (plan/model/packing.h) stay on the device, because they are never
/// offloaded. Call this only if the host tier is memory. In a file, these tensors would take
/// unplanned memory during the update.
void add_host_updates(const CapturedStep& step, StepGraph& graph);

/// Sets the times of a node's other algorithms to the measured time of the algorithm that `plan`
/// ran. Does this only for nodes with an algorithm that updates tensors on the host. Such a node
/// takes the same time with each of its algorithms.
void share_times(Graph& graph, const Plan& plan);

}  // namespace dovetail::plan
