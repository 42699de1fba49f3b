#pragma once

#include "dovetail/plan/model/actions.h"
#include "dovetail/plan/record/step_graph.h"

namespace dovetail::plan {

/// Gives nodes that change parameters or state other ways to run, by the same operations on the
/// same values, which find some of these where the host tier keeps them, so that they need no copy
/// and no memory on the device:
///   "state on the host"              state that no other node uses: moments, master weights
///   "weights and state on the host"  with the parameters that the node changes, too
/// Storages below kPagedBytes stay on the device, as they never leave it. Only where the host tier
/// is memory: in a file they would take memory that nobody has planned while they are read there.
void add_host_updates(const CapturedStep& step, StepGraph& graph);

/// A node takes as long either way: the time of the way that `plan` ran it by, for the others, too.
void share_times(Graph& graph, const Plan& plan);

}  // namespace dovetail::plan
