#include "dovetail/plan/placed.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/plan/search.h"

namespace dovetail::plan {

namespace {

PlacedSolution search_placed(const Graph& graph, const SolveOptions& options) {
  constexpr int kTimes = 6;
  const double started_s = now_seconds(), deadline_s = started_s + options.time_limit_s;
  Graph within = graph;
  SolveOptions next = options;
  int64_t least_bytes = 0;
  double bound_s = 0;
  for (int i = 0; i < kTimes; ++i) {
    // What is left serves this time and one more.
    next.time_limit_s = std::max((deadline_s - now_seconds()) / (i + 1 < kTimes ? 2 : 1), 0.01);
    JointSolution joint = solve_jointly(within, next);
    if (i == 0) bound_s = joint.report.bound_s;
    PlacedSolution made{.solution = std::move(joint.solution), .bound_s = bound_s, .layout = {}};
    made.layout = lay_out(graph, made.solution.schedule.plan, made.solution.schedule.timeline);
    made.solution.seconds = now_seconds() - started_s;
    const int64_t bytes = made.layout.bytes + graph.base_bytes;
    if (bytes <= graph.budget_bytes) return made;
    if (least_bytes == 0 || bytes < least_bytes) least_bytes = bytes;
    within.budget_bytes -= std::max(bytes - graph.budget_bytes, graph.budget_bytes / 100);
    if (within.budget_bytes < floor_of(graph, options).bytes) break;
    next.start = made.solution.decisions;
  }
  throw UserError(fmt::format("plan: no plan within {} bytes was found whose tensors find places there; the least "
                              "memory that one takes is {} bytes",
                              graph.budget_bytes, least_bytes),
                  "raise the budget a little");
}

}  // namespace

PlacedSolution solve_placed(const Graph& graph, const SolveOptions& options, const PlanCache& cache) {
  SolveOptions how = options;
  how.fetches_wait = false;
  PlacedSolution out;
  out.bound_s = least_s(graph);
  const auto place = [&](const Solution& solution) {
    out.layout = lay_out(graph, solution.schedule.plan, solution.schedule.timeline);
    return out.layout.bytes + graph.base_bytes <= graph.budget_bytes;
  };
  out.solution = solve_known(cache, graph, how, place, [&](const Graph& within, const SolveOptions& next) {
    PlacedSolution made = search_placed(within, next);
    out.bound_s = made.bound_s;
    return std::move(made.solution);
  });
  out.bound_s = std::min(out.bound_s, out.solution.schedule.expected_s);
  DOVETAIL_CHECK(place(out.solution), "a placed plan of {} bytes", out.layout.bytes);
  return out;
}

}  // namespace dovetail::plan
