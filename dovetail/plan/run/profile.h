#pragma once

#include <cstdint>
#include <filesystem>
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
/// executed steps by `plan`. Each time is the median over all runs of the node in them.
void set_times(Graph& graph, const Plan& plan, std::span<const Executor::Run> runs);

/// Lowers the bandwidth in `graph` to the rate that copies reached in `runs`, which are executed
/// steps by `plan`. The rate of a step is the sum of bytes over the sum of copy times in one
/// direction. The median over the steps counts; a higher rate changes nothing. Reasons for a lower
/// rate: a disk sustains its rate for some copies only, and small copies have start-up costs. A
/// direction without copies stays unchanged.
void limit_bandwidth(Graph& graph, const Plan& plan, std::span<const Executor::Run> runs);

/// Number of algorithms of nodes that were measured, and number that were found in the cache.
struct Profile {
  int measured = 0, known = 0;
};
/// Sets the times of all algorithms of all nodes. Times in `cache` are used; the others are
/// measured and stored in `cache`. A measured time is the median over `rounds` steps with
/// everything kept, after one warm-up step. Each step runs the measured algorithms of a node one
/// after another. These are normal training steps: they change parameters, state and the random
/// generator. No step runs if there is nothing to measure.
Profile profile_nodes(const CapturedStep& step, StepGraph& graph, int rounds, ProfileCache& cache);

/// Measures the bandwidth between an arena and a host tier in `folder` (empty: in memory). Each
/// direction is measured alone, while the processor multiplies matrices. The slowdown is the
/// fraction of these products that copying costs. All values are medians over `rounds` copies of
/// `bytes`.
Bandwidth measure_bandwidth(const std::filesystem::path& folder, int64_t bytes, int rounds);

}  // namespace dovetail::plan
