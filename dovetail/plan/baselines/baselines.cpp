#include "dovetail/plan/baselines/baselines.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/plan/baselines/checkmate.h"
#include "dovetail/plan/solve/search.h"
#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {
namespace {

/// Simulates a plan. Returns nullopt if it does not fit.
std::optional<Timeline> timeline_of(const Graph& graph, const Plan& plan) {
  try {
    return check(graph, plan);
  } catch (const InvalidPlan&) {
    return {};
  }
}

Graph without_budget(const Graph& graph) {
  Graph out = graph;
  out.budget_bytes = std::numeric_limits<int64_t>::max();
  return out;
}

/// Fastest of all offered stages whose plans fit.
struct Fastest {
  const StageGraph& graph;
  std::optional<Stages> stages;
  Baseline found;

  void offer(const std::optional<Stages>& some) {
    if (!some) return;
    Plan plan = plan_of(graph, *some, smallest_workspace_algorithms(graph.graph()));
    const auto timeline = timeline_of(graph.graph(), plan);
    if (!timeline || (found.plan && timeline->makespan_s >= found.time_s)) return;
    found.plan = std::move(plan);
    found.time_s = timeline->makespan_s;
    stages = *some;
  }
};

void offer_greedy(Fastest& fastest, Candidates which, const ChenOptions& options) {
  constexpr int kSteps = 60;  // 3 / 0.05 segment sizes
  const StageGraph& graph = fastest.graph;
  const std::vector<int> candidates = chen_candidates(graph, which);
  const auto sqrt = stages_for(graph, sqrt_checkpoints(candidates), options);
  if (!sqrt) return;
  const Graph unlimited = without_budget(graph.graph());
  const int64_t peak =
      check(unlimited, plan_of(graph, *sqrt, smallest_workspace_algorithms(unlimited))).peak_bytes;
  for (int step = 0; step < kSteps; ++step)
    fastest.offer(stages_for(
        graph, greedy_checkpoints(graph, candidates, (peak - graph.resident_bytes()) * step / 20),
        options));
}

/// Gives each compute in turn, in the given order, its fastest algorithm that fits. Returns the
/// makespan of the changed plan; `makespan_s` is its makespan before.
double give_algorithms(const Graph& graph, Plan& plan, const std::vector<size_t>& order,
                       double makespan_s) {
  for (const size_t a : order) {
    Action& action = plan.actions[a];
    const auto& algorithms = graph.nodes[action.node].algorithms;
    std::vector<int> by_time(algorithms.size());
    std::iota(by_time.begin(), by_time.end(), 0);
    std::stable_sort(by_time.begin(), by_time.end(),
                     [&](int x, int y) { return algorithms[x].time_s < algorithms[y].time_s; });
    for (const int algorithm : by_time) {
      const int before = std::exchange(action.algorithm, algorithm);
      if (algorithm == before) break;
      const auto timeline = timeline_of(graph, plan);
      if (timeline && timeline->makespan_s <= makespan_s) {
        makespan_s = timeline->makespan_s;
        break;
      }
      action.algorithm = before;
    }
  }
  return makespan_s;
}

}  // namespace

const Algorithm& smallest_workspace_algorithm(const GraphNode& node) {
  return *std::min_element(
      node.algorithms.begin(), node.algorithms.end(), [](const Algorithm& a, const Algorithm& b) {
        return std::pair(a.workspace_bytes, a.time_s) < std::pair(b.workspace_bytes, b.time_s);
      });
}

std::vector<int> smallest_workspace_algorithms(const Graph& graph) {
  std::vector<int> out;
  for (const GraphNode& node : graph.nodes)
    out.push_back(static_cast<int>(&smallest_workspace_algorithm(node) - node.algorithms.data()));
  return out;
}

SeenGraph seen_as(const Graph& graph, Seen seen) {
  SeenGraph out{.graph = graph};
  const std::vector<int> least = smallest_workspace_algorithms(graph);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    GraphNode& node = out.graph.nodes[n];
    const int fastest = fastest_algorithm(node);
    out.algorithms.push_back(seen == Seen::kFastest ? fastest : least[n]);
    Algorithm only = node.algorithms[out.algorithms[n]];
    if (seen == Seen::kFastestTime) only.time_s = node.algorithms[fastest].time_s;
    node.algorithms = {std::move(only)};
  }
  return out;
}

Plan choose_algorithms(const Graph& graph, Plan plan, const std::vector<int>& algorithms) {
  for (Action& action : plan.actions)
    if (action.op == Op::kCompute) action.algorithm = algorithms[action.node];
  const double before_s = check(graph, plan).makespan_s;
  // Time that the fastest algorithm of an action saves, and the workspace that it needs for that.
  const auto saving = [&](size_t a) {
    const GraphNode& node = graph.nodes[plan.actions[a].node];
    const Algorithm &given = node.algorithms[plan.actions[a].algorithm],
                    &fastest = node.algorithms[fastest_algorithm(node)];
    return std::pair(given.time_s - fastest.time_s,
                     std::max<int64_t>(fastest.workspace_bytes - given.workspace_bytes, 1));
  };
  const auto saved_s = [&](size_t a) { return saving(a).first; };
  const auto saved_per_byte = [&](size_t a) {
    return saving(a).first / static_cast<double>(saving(a).second);
  };
  std::vector<size_t> computes;
  for (size_t a = 0; a < plan.actions.size(); ++a)
    if (plan.actions[a].op == Op::kCompute) computes.push_back(a);
  std::vector<size_t> by_time = computes, by_rate = computes;
  std::stable_sort(by_time.begin(), by_time.end(),
                   [&](size_t a, size_t b) { return saved_s(a) > saved_s(b); });
  std::stable_sort(by_rate.begin(), by_rate.end(),
                   [&](size_t a, size_t b) { return saved_per_byte(a) > saved_per_byte(b); });
  Plan out = plan;
  double out_s = before_s;
  for (const auto* order : {&computes, &by_time, &by_rate}) {
    Plan made = plan;
    const double made_s = give_algorithms(graph, made, *order, before_s);
    if (made_s >= out_s) continue;
    out = std::move(made);
    out_s = made_s;
  }
  return out;
}

Decisions decisions_of(const Graph& graph, const Plan& plan) {
  const std::vector<Gap> gaps = find_gaps(graph);
  Decisions out{.gaps = std::vector<Keep>(gaps.size(), Keep::kResident),
                .codec = std::vector<int>(gaps.size()),
                .algorithms = smallest_workspace_algorithms(graph)};
  int latest = -1;  // latest node that has run for the first time
  std::vector<char> ran(graph.nodes.size());
  std::vector<int> away(graph.tensors.size(), -1),
      codec(graph.tensors.size());  // away: gap in which each tensor is off the device, or -1
  const auto gap_of = [&](int tensor) {
    for (size_t g = 0; g < gaps.size(); ++g)
      if (gaps[g].tensor == tensor && !gaps[g].wraps && gaps[g].from <= latest &&
          latest < gaps[g].to)
        return static_cast<int>(g);
    return -1;
  };
  const auto back = [&](int tensor, Keep keep) {
    const int gap = std::exchange(away[tensor], -1);
    if (gap < 0) return;
    out.gaps[gap] = keep;
    out.codec[gap] = keep == Keep::kPacked ? codec[tensor] : 0;
  };
  for (const int tensor : plan.starts_on_host)
    for (size_t g = 0; g < gaps.size(); ++g)
      if (gaps[g].wraps && gaps[g].tensor == tensor) out.gaps[g] = Keep::kHost;
  for (const Action& action : plan.actions) {
    if (action.op == Op::kFree) away[action.tensor] = gap_of(action.tensor);
    if (action.op == Op::kCompress) codec[action.tensor] = action.codec;
    if (action.op == Op::kPrefetch) back(action.tensor, Keep::kHost);
    if (action.op == Op::kDecompress) back(action.tensor, Keep::kPacked);
    if (action.op != Op::kCompute) continue;
    if (ran[action.node]) {
      for (const int tensor : graph.nodes[action.node].outputs) back(tensor, Keep::kAgain);
      continue;
    }
    ran[action.node] = 1;
    latest = action.node;
    out.algorithms[action.node] = action.algorithm;
  }
  return out;
}

Baseline chen_sqrt(const Graph& graph, Candidates candidates, const ChenOptions& options) {
  const StageGraph stages(graph);
  Fastest fastest{.graph = stages, .found = {.name = "chen sqrt(n)"}};
  const double started_s = now_seconds();
  fastest.offer(stages_for(stages, sqrt_checkpoints(chen_candidates(stages, candidates)), options));
  fastest.found.seconds = now_seconds() - started_s;
  return fastest.found;
}

Baseline chen_greedy(const Graph& graph, Candidates candidates, const ChenOptions& options) {
  const StageGraph stages(graph);
  Fastest fastest{.graph = stages, .found = {.name = "chen greedy"}};
  const double started_s = now_seconds();
  offer_greedy(fastest, candidates, options);
  fastest.found.seconds = now_seconds() - started_s;
  return fastest.found;
}

Baseline checkmate(const Graph& graph, const MilpOptions& options, Seen seen) {
  const SeenGraph view = seen_as(graph, seen);
  const StageGraph stages(view.graph);
  Baseline out{.name = "checkmate"};
  const SolveOptions alone{.offload = false,
                           .compress = false,
                           .across_steps = false,
                           .time_limit_s = options.time_limit_s / 3};
  if (graph.budget_bytes < floor_of(view.graph, alone).bytes) return out;
  const double started_s = now_seconds();
  Fastest start{.graph = stages};
  for (const Candidates which : {Candidates::kAll, Candidates::kArticulation})
    offer_greedy(start, which, {});
  try {
    const Solution greedy = solve(view.graph, alone);
    start.offer(stages_of(stages, greedy.schedule.plan));
  } catch (const UserError&) {  // the greedy search finds none; Checkmate may
  }
  const auto made = solve_checkmate(view.graph, options, start.stages);
  out.seconds = now_seconds() - started_s;
  if (!made) return out;
  out.time_s = made->time_s;
  out.bound_s = made->bound_s;
  Plan plan = plan_of(stages, made->stages, view.algorithms);
  if (timeline_of(graph, plan)) out.plan = std::move(plan);
  return out;
}

Baseline checkmate_rounded(const Graph& graph, const MilpOptions& options) {
  const SeenGraph view = seen_as(graph, Seen::kLeastWorkspace);
  const StageGraph stages(view.graph);
  Baseline out{.name = "checkmate, rounded"};
  const double started_s = now_seconds();
  const auto made = round_checkmate(view.graph, options);
  out.seconds = now_seconds() - started_s;
  if (!made) return out;
  out.time_s = made->time_s;
  out.plan = plan_of(stages, made->stages, view.algorithms);
  return out;
}

}  // namespace dovetail::plan
