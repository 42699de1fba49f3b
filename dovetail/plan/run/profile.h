#pragma once

#include <cstdint>
#include <span>

#include "dovetail/plan/model/actions.h"
#include "dovetail/plan/record/captured_step.h"
#include "dovetail/plan/record/profile_cache.h"
#include "dovetail/plan/record/step_graph.h"
#include "dovetail/plan/run/executor.h"

namespace dovetail::plan {

/// Returns the plan that runs each node once, by its first algorithm, and frees each storage after
/// its last use. It offloads, recomputes and compresses nothing.
Plan keep_all(const Graph& graph);

/// Writes measured node times into `graph`, for each algorithm that `plan` runs. `runs` are
/// steps executed by `plan`. Each time is the median over all runs of the node in them. Times of
/// the node's other algorithms change by the factor by which the time of its first measured
/// algorithm changed.
void set_times(Graph& graph, const Plan& plan, std::span<const Executor::Run> runs);

/// Lowers the bandwidth in `graph` to the rate that copies reached in `runs`, which are steps
/// executed by `plan`. For each direction:
/// 1. The rate of a step is the sum of copied bytes divided by the sum of copy times.
/// 2. The new bandwidth is the median of these rates.
/// 3. The old bandwidth stays if it is lower, or if there are no copies.
///
/// Reasons for a lower rate: a disk sustains its rate for some copies only, and small copies have
/// start-up costs.
void limit_bandwidth(Graph& graph, const Plan& plan, std::span<const Executor::Run> runs);

/// Result of `profile_nodes`. `measured`: number of algorithms that were measured. `known`: number
/// of algorithms whose times the cache had.
struct Profile {
  int measured = 0, known = 0;
};
/// Sets the times of all algorithms of all nodes. Takes them from `cache` if they are there.
/// Otherwise measures them and stores them in `cache`. A measured time is the median over `rounds`
/// steps with everything kept, after one warm-up step. Each step runs the measured algorithms of a
/// node one after another. These are normal training steps: they change parameters, state and the
/// random generator. No step runs if there is nothing to measure.
Profile profile_nodes(const CapturedStep& step, StepGraph& graph, int rounds, ProfileCache& cache);

}  // namespace dovetail::plan
