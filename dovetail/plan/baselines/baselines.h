#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/plan/baselines/chen.h"
#include "dovetail/plan/model/check.h"
#include "dovetail/plan/model/schedule.h"
#include "dovetail/plan/solve/milp.h"

/// Published strategies for planning a training step within a memory budget, to compare ours with.
namespace dovetail::plan {

/// Returns the node's algorithm with the smallest workspace, the fastest one if there are several.
const Algorithm& smallest_workspace_algorithm(const GraphNode& node);
/// Returns, for each node, the index of the algorithm that smallest_workspace_algorithm() returns.
std::vector<int> smallest_workspace_algorithms(const Graph& graph);

/// Costs that a strategy sees which does not choose algorithms.
enum class Seen {
  kLeastWorkspace,  ///< time and workspace of the algorithm with the smallest workspace
  /// Time of the fastest algorithm, workspace of the smallest. MO-SOS plans copies so (section
  /// 2.3): a copy that hides behind the fastest algorithm hides behind each other one, too.
  kFastestTime,
  kFastest,  ///< time and workspace of the fastest algorithm
};
/// Graph with one algorithm per node, for strategies that do not choose algorithms.
struct SeenGraph {
  Graph graph;
  /// Per node: index of the algorithm in the whole graph whose workspace `graph` has.
  std::vector<int> algorithms;
};
SeenGraph seen_as(const Graph& graph, Seen seen);

/// Chooses the algorithm of each compute in a plan of `seen_as`. This is the strategy `Auto` of
/// MO-SOS, a planner that decides by 0-1 programs. `plan` is a plan of SeenGraph::graph, and
/// `algorithms` is SeenGraph::algorithms. Each compute starts with these. Auto then visits the
/// computes one by one. Each gets the fastest algorithm with which the plan still fits the budget
/// and does not become slower. A choice is never undone, even if it takes memory that a later copy
/// needs. Three orders of visits are tried: the plan's, by time saved, and by time saved per byte
/// of workspace. Returns the fastest result. Throws InvalidPlan if the plan does not fit with
/// `algorithms`.
Plan choose_algorithms(const Graph& graph, Plan plan, const std::vector<int>& algorithms);

/// Derives decisions (plan/model/schedule.h) from a plan: the algorithm of each node's first run,
/// and the treatment of each gap. A search may start from them. Decisions cannot express every
/// plan. Scheduling them may therefore give a plan other than `plan`.
Decisions decisions_of(const Graph& graph, const Plan& plan);

/// Result of a published strategy: its plan, and the time to find it.
struct Baseline {
  std::string name;
  std::optional<Plan> plan;  ///< accepted by `check`; nullopt if none within the budget was found
  double seconds = 0;        ///< duration of the search
  /// Step time that the strategy expects: the sum of the durations of all runs of nodes.
  double time_s = 0;
  /// Proven lower bound on the step time of every plan that the strategy can make; 0 if nothing is
  /// proven.
  double bound_s = 0;
};

/// Strategy sqrt(n) of Chen et al. (plan/baselines/chen.h): every sqrt(n)-th candidate is a
/// checkpoint. Each node runs once or twice. The strategy makes a single plan. Baseline::plan is
/// empty if this plan exceeds the budget.
Baseline chen_sqrt(const Graph& graph, Candidates candidates, const ChenOptions& options = {});
/// Greedy strategy of Chen et al. (greedy_checkpoints). Each node runs once or twice. M is the
/// memory of the sqrt(n) plan: its peak minus StageGraph::resident_bytes. The strategy tries 60
/// segment sizes: 0, M/20, 2M/20, ..., 59M/20. Returns the fastest plan that fits the budget.
Baseline chen_greedy(const Graph& graph, Candidates candidates, const ChenOptions& options = {});

/// Strategy Checkmate: solves an integer program (plan/baselines/checkmate.h). The solver starts
/// from the fastest plan that two methods find. These are Chen's greedy strategy, and our search
/// (`solve`) with recomputation as its only technique. The search takes up to a third of
/// `options.time_limit_s`, in addition to the solver's time. Baseline::plan has
/// SeenGraph::algorithms.
Baseline checkmate(const Graph& graph, const MilpOptions& options,
                   Seen seen = Seen::kLeastWorkspace);
/// Returns the plan from Checkmate's linear relaxation, rounded (round_checkmate).
Baseline checkmate_rounded(const Graph& graph, const MilpOptions& options);

}  // namespace dovetail::plan
