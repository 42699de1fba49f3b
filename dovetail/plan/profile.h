#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "dovetail/plan/actions.h"
#include "dovetail/plan/captured_step.h"
#include "dovetail/plan/executor.h"
#include "dovetail/plan/step_graph.h"

namespace dovetail::plan {

/// The plan that runs every node once, with its first algorithm, and frees each storage after its last reader.
Plan keep_all(const Graph& graph);

/// Write into `graph` how long each node takes: the median of its runs in these steps by `plan`.
void set_times(Graph& graph, const Plan& plan, std::span<const Executor::Run> runs);

/// The same: the median of `rounds` steps with everything kept, after one to warm
/// up. These are training steps like any other: they change parameters, state and the random generator.
void profile_nodes(const CapturedStep& step, StepGraph& graph, int rounds);

/// Bytes a second between an arena and a host tier in `folder` (empty: in memory), each direction by itself, while the
/// processor multiplies matrices, and how much of these products is lost meanwhile: medians of `rounds` copies of
/// `bytes`.
Bandwidth measure_bandwidth(const std::filesystem::path& folder, int64_t bytes, int rounds);

}  // namespace dovetail::plan
