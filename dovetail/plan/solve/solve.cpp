#include "dovetail/plan/solve/solve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/plan/solve/search.h"

namespace dovetail::plan {
namespace {

/// Returns the algorithm that adds the fewest bytes to a node, among those that may be chosen.
const Algorithm& smallest_algorithm(const Graph& graph, const Scheduler& scheduler, int node,
                                    const SolveOptions& options) {
  const auto& algorithms = graph.nodes[node].algorithms;
  const Algorithm* least = &algorithms[fastest_algorithm(graph.nodes[node])];
  for (int a = 0; a < static_cast<int>(algorithms.size()); ++a)
    if (may_be_chosen(graph, scheduler, node, a, options) &&
        graph.extra_bytes(algorithms[a]) < graph.extra_bytes(*least))
      least = &algorithms[a];
  return *least;
}

/// Offers the start points of the search. First come decisions that offload or drop everything, by
/// each technique. Then decisions are found greedily, first in large steps (`shed`), then in small
/// ones (`descend`). Both use several budgets up to the requested one. A smaller budget leaves
/// memory for copies in flight. All techniques are used, and subsets of them. If this gives no plan
/// by the deadline, the first budgets are tried to the end until there is a plan. Small steps then
/// go on from the decisions of large ones first, which leave few of them.
void begin(const Graph& graph, const SolveOptions& options, int64_t floor_bytes, Search& search) {
  constexpr int kBudgets = 6, kToTheEnd = 2, kLongestPeriod = 32;
  constexpr double kPartOfTime = 0.6;
  constexpr std::array kAway = {Keep::kHost, Keep::kAgain, Keep::kAgainEarly, Keep::kPacked};
  SolveOptions within_step = options;
  within_step.across_steps = false;
  for (const Keep keep : kAway) {
    search.offer(search.all_offloaded(keep, within_step));
    if (options.offload && options.across_steps) search.offer(search.all_offloaded(keep, options));
  }
  std::vector<SolveOptions> techniques = {options};
  if (options.offload && options.recompute) {
    techniques.push_back(options);
    techniques.back().recompute = false;
    techniques.push_back(options);
    techniques.back().offload = false;
  }
  if (options.offload && options.across_steps) techniques.push_back(within_step);
  using GoesOn = std::function<bool()>;
  const auto each = [&](int budgets, const GoesOn& goes_on, const auto& visit) {
    for (int i = 0; i < budgets; ++i) {
      const int64_t budget = graph.budget_bytes - (graph.budget_bytes - floor_bytes) * i / kBudgets;
      for (const SolveOptions& allowed : techniques)
        if (goes_on()) visit(budget, allowed);
    }
  };
  const auto shed = [&](const GoesOn& goes_on, Search::Until until) {
    each(kBudgets, goes_on, [&](int64_t budget, const SolveOptions& allowed) {
      for (const Keep again : {Keep::kAgain, Keep::kAgainEarly})
        search.shed(budget, allowed, again, until);
    });
  };
  const auto descend = [&](int budgets, const GoesOn& goes_on, Search::Until until) {
    each(budgets, goes_on, [&](int64_t budget, const SolveOptions& allowed) {
      search.descend(search.all_resident(), budget, allowed, until);
    });
  };
  const auto none = [&] { return !search.best(); };
  const auto in_time = [&] { return search.in_time(kPartOfTime); };
  shed(in_time, Search::Until::kDeadline);
  descend(kBudgets, in_time, Search::Until::kDeadline);
  for (int period = kLongestPeriod; period > 1 && none(); period /= 2)
    for (const Keep keep : kAway) search.offer(search.mostly_offloaded(keep, options, period));
  shed(none, Search::Until::kPlan);
  each(kToTheEnd, none, [&](int64_t budget, const SolveOptions& allowed) {
    for (const Keep again : {Keep::kAgain, Keep::kAgainEarly})
      search.descend(search.shed(budget, allowed, again, Search::Until::kPlan), budget, allowed,
                     Search::Until::kPlan);
  });
  descend(kToTheEnd, none, Search::Until::kPlan);
}

Solution finish(const Graph& graph, Search& search, double started_s) {
  Solution out = std::move(*search.best());
  out.budget_bytes = graph.budget_bytes;
  out.bound_s = minimum_s(graph);
  out.complete = search.in_time();
  out.seconds = now_seconds() - started_s;
  return out;
}

}  // namespace

Floor floor_of(const Graph& graph, const SolveOptions& options) {
  const Scheduler scheduler(graph);
  const size_t nodes = graph.nodes.size();
  // Bytes at each node with everything kept, minus everything that may leave.
  Decisions keep_all{.gaps = std::vector<Keep>(scheduler.gaps().size()),
                     .codec = std::vector<int>(scheduler.gaps().size()),
                     .algorithms = std::vector<int>(nodes)};
  const auto kept = scheduler.schedule(keep_all, kNoBudget);
  DOVETAIL_CHECK(kept.has_value(), "a step that keeps all does not run");
  std::vector<int64_t> bytes = kept->slot_bytes;
  for (size_t n = 0; n < nodes; ++n)
    bytes[n] +=
        graph.extra_bytes(smallest_algorithm(graph, scheduler, static_cast<int>(n), options)) -
        graph.nodes[n].algorithms[0].workspace_bytes;
  const auto may_wrap = [&](int tensor) {
    const int gap = scheduler.wrapped_gap(tensor);
    return gap >= 0 && may_be_offloaded(graph, scheduler.gaps()[gap], options);
  };
  for (size_t g = 0; g < scheduler.gaps().size(); ++g) {
    const Gap& gap = scheduler.gaps()[g];
    const GraphTensor& tensor = graph.tensors[gap.tensor];
    if (tensor.bytes < options.least_bytes) continue;
    if (gap.from < 0 && may_wrap(gap.tensor)) continue;  // part of the wrapping gap
    double stays = 1;
    for (int c = 0; c < static_cast<int>(graph.codecs.size()) && options.compress; ++c)
      if (may_be_packed(graph, gap, c)) stays = std::min(stays, graph.codecs[c].ratio);
    if (may_be_offloaded(graph, gap, options) ||
        (options.recompute && scheduler.can_be_recomputed(static_cast<int>(g))))
      stays = 0;
    for (size_t n = 0; n < nodes; ++n)
      if (gap.covers(static_cast<int>(n)))
        bytes[n] -= static_cast<int64_t>((1 - stays) * static_cast<double>(tensor.bytes));
  }
  Floor out;
  for (size_t n = 0; n < nodes; ++n)
    if (bytes[n] > out.bytes) out = {bytes[n], static_cast<int>(n)};
  if (out.node >= 0)
    out.workspace_bytes = smallest_algorithm(graph, scheduler, out.node, options).workspace_bytes;
  // Tensors that cannot be on the host when the step begins must fit at that time.
  int64_t at_start = graph.base_bytes;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const GraphTensor& tensor = graph.tensors[t];
    if (tensor.alias_of < 0 && resident_at_start(tensor.kind) && !may_wrap(static_cast<int>(t)))
      at_start += tensor.bytes;
  }
  if (at_start > out.bytes) out = {at_start, -1};
  return out;
}

Solution solve(const Graph& graph, const SolveOptions& options) {
  const double started_s = now_seconds();
  const Floor floor = floor_of(graph, options);
  if (graph.budget_bytes < floor.bytes)
    throw UserError(
        fmt::format(
            "plan: the budget of {} bytes is below the floor of this step, {} bytes, {}",
            graph.budget_bytes, floor.bytes,
            floor.node < 0
                ? "which what it keeps of its inputs, parameters and state takes when it begins"
                : fmt::format("which node {} needs", graph.nodes[floor.node].name)),
        "raise the budget, lower the batch, or allow more techniques");
  Search search(graph, options);
  if (options.start) search.offer(*options.start);
  if (!search.offer(search.all_resident())) begin(graph, options, floor.bytes, search);
  search.improve_all();
  search.keep_what_need_not_wrap();
  if (!search.best())
    throw UserError(fmt::format("plan: no plan within {} bytes was found; the floor is {} bytes",
                                graph.budget_bytes, floor.bytes),
                    "raise the budget, or allow more techniques");
  return finish(graph, search, started_s);
}

std::optional<Solution> improve(const Graph& graph, const SolveOptions& options,
                                const Decisions& decisions) {
  const double started_s = now_seconds();
  Search search(graph, options);
  if (!search.offer(decisions)) search.descend(decisions, graph.budget_bytes, options);
  search.improve_all();
  if (!search.best()) return std::nullopt;
  return finish(graph, search, started_s);
}

std::vector<Solution> solve_each(
    const Graph& graph, const SolveOptions& options, const std::vector<int64_t>& budgets_bytes,
    const std::function<Solution(const Graph&, const SolveOptions&)>& one) {
  std::vector<Solution> out;
  SolveOptions next = options;
  Graph within = graph;
  for (const int64_t bytes : budgets_bytes) {
    DOVETAIL_CHECK(bytes >= within.budget_bytes || out.empty(),
                   "budgets must ascend: {} after {} bytes", bytes, within.budget_bytes);
    within.budget_bytes = bytes;
    Solution made = one(within, next);
    if (!out.empty() && made.schedule.expected_s > out.back().schedule.expected_s) {
      made.decisions = out.back().decisions;
      made.schedule = out.back().schedule;
      made.budget_bytes = out.back().budget_bytes;
    }
    next.start = made.decisions;
    out.push_back(std::move(made));
  }
  return out;
}

}  // namespace dovetail::plan
