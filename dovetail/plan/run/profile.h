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

/// The plan that runs every node once, with its first algorithm, and frees each storage after its
/// last reader.
Plan keep_all(const Graph& graph);

/// Write into `graph` how long each node takes by each algorithm that it runs by: the median of its
/// runs in these steps by `plan`.
void set_times(Graph& graph, const Plan& plan, std::span<const Executor::Run> runs);

/// Lower the bandwidth in `graph` to what the copies of these steps by `plan` reached together, the
/// median of the steps, where that is less: a disk keeps up its rate for some copies only, and
/// small copies take as long to start as large ones. A direction in which a step moves nothing
/// stays as it is.
void limit_bandwidth(Graph& graph, const Plan& plan, std::span<const Executor::Run> runs);

/// How many algorithms of nodes were measured, and how many `cache` knew.
struct Profile {
  int measured = 0, known = 0;
};
/// Fill in the times of all algorithms of all nodes: those that `cache` knows, and of the others
/// the median of `rounds` steps with everything kept, after one to warm up, in each of which the
/// algorithms of a node run one after another. These are training steps like any other: they change
/// parameters, state and the random generator; with nothing to measure there are none. What was
/// measured is put into `cache`.
Profile profile_nodes(const CapturedStep& step, StepGraph& graph, int rounds, ProfileCache& cache);

/// Bytes a second between an arena and a host tier in `folder` (empty: in memory), each direction
/// by itself, while the processor multiplies matrices, and how much of these products is lost
/// meanwhile: medians of `rounds` copies of `bytes`.
Bandwidth measure_bandwidth(const std::filesystem::path& folder, int64_t bytes, int rounds);

}  // namespace dovetail::plan
