#pragma once

#include <optional>
#include <vector>

#include "dovetail/plan/baselines/baselines.h"

/// Published strategies that swap tensors between device and host by fixed rules. They treat
/// activations that forward computes and backward reads. We schedule their decisions by our
/// Scheduler. It never delays a node by a copy that the papers' own schedules would hide.
///
/// None of them plans algorithms together with copies. Each rule is therefore applied twice: to the
/// algorithms with the smallest workspaces, and to the fastest ones. Auto (with_auto) follows. The
/// faster plan is returned. Baseline::plan is nullopt if the rule has no plan within the budget.
namespace dovetail::plan {

/// Schedules decisions whose algorithms were not planned, lets Auto choose algorithms
/// (choose_algorithms), and schedules the decisions again with these. Returns the faster of the two
/// plans; nullopt if the first schedule does not fit `graph.budget_bytes`. `decisions.algorithms`
/// are the algorithms to begin with.
std::optional<Plan> with_auto(const Graph& graph, Decisions decisions);

/// vDNN (Rhu et al. 2016). Offloads no activations, activations that a convolution reads last in
/// forward, or all activations. Its dynamic form takes the fastest of these that fits.
Baseline vdnn(const Graph& graph);

/// SuperNeurons (Wang et al. 2018). Offloads outputs of convolutions, and recomputes outputs of
/// cheaper operations; outputs of matrix products stay. A cache evicts the least recently used
/// tensor. So the first outputs of forward leave the device, as few as let the step fit.
/// Recomputation is speed-centric (Keep::kAgainEarly) or memory-centric (Keep::kAgain); the faster
/// one is taken.
Baseline superneurons(const Graph& graph);

/// Capuchin (Peng et al. 2020). Measures when each tensor is used if everything is kept. The free
/// time of an activation is the time between its uses, minus both copies. Activations with free
/// time are swapped first, in descending order, until the step fits. After that each choice is the
/// cheaper one of two:
/// - swapping the activation with the largest free time, at the cost of the missing time,
/// - recomputing the activation with the most bytes per second of recomputation, at the cost of
///   these seconds. They include inputs that must be recomputed first.
Baseline capuchin(const Graph& graph);

}  // namespace dovetail::plan
