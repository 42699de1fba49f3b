#pragma once

#include "dovetail/plan/model/actions.h"
#include "dovetail/plan/record/step_graph.h"

namespace dovetail::plan {

/// Adds algorithms to nodes that change parameters or state. They run the same operations on the
/// same values, but find some of these in the host tier. These tensors need no copy and no device
/// memory.
/// - "state on the host": state that no other node uses, such as moments and master weights
/// - "weights and state on the host": in addition, the parameters that the node changes
///
/// Storages below kPagedBytes stay on the device, because they are never offloaded. Call this only
/// if the host tier is memory. In a file, these tensors would take unplanned memory during the
/// update.
void add_host_updates(const CapturedStep& step, StepGraph& graph);

/// Gives all algorithms of a node the time of the one that `plan` ran, if some find tensors on the
/// host. A node takes as long either way.
void share_times(Graph& graph, const Plan& plan);

}  // namespace dovetail::plan
