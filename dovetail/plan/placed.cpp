#include "dovetail/plan/placed.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/plan/search.h"

namespace dovetail::plan {

namespace {

/// Looks for a plan whose places lie within the budget.
class PlacedSearch {
 public:
  PlacedSearch(const Graph& graph, const SolveOptions& options)
      : graph_(graph), options_(options), floor_bytes_(floor_of(graph, options).bytes), started_s_(now_seconds()) {}

  PlacedSolution run() {
    search();
    if (!best_) take_what_is_found_at_once();
    if (!best_)
      throw UserError(fmt::format("plan: no plan within {} bytes was found whose tensors find places there; the least "
                                  "memory that one takes is {} bytes",
                                  graph_.budget_bytes, least_bytes_),
                      "raise the budget a little");
    best_->bound_s = bound_s_;
    best_->solution.seconds = now_seconds() - started_s_;
    return std::move(*best_);
  }

 private:
  /// By how much its places are beyond the budget, or 0: then it is kept, if it is the fastest.
  int64_t place(Solution solution) {
    PlacedSolution made{.solution = std::move(solution)};
    made.layout = lay_out(graph_, made.solution.schedule.plan, made.solution.schedule.timeline);
    const int64_t bytes = made.layout.bytes + graph_.base_bytes;
    if (least_bytes_ == 0 || bytes < least_bytes_) least_bytes_ = bytes;
    if (bytes > graph_.budget_bytes) return bytes - graph_.budget_bytes;
    if (!best_ || made.solution.schedule.expected_s < best_->solution.schedule.expected_s) best_ = std::move(made);
    return 0;
  }

  /// The best that there is for the budget; then for less.
  void search() {
    constexpr int kTimes = 6;
    Graph within = graph_;
    SolveOptions next = options_;
    for (int i = 0; i < kTimes; ++i) {
      // What is left serves this time and one more.
      const double left_s = started_s_ + options_.time_limit_s - now_seconds();
      next.time_limit_s = std::max(left_s / (i + 1 < kTimes ? 2 : 1), 0.01);
      JointSolution joint;
      try {
        joint = solve_jointly(within, next);
      } catch (const UserError&) {  // none for less
        if (i == 0) throw;
        return;
      }
      if (i == 0) bound_s_ = joint.report.bound_s;
      next.start = joint.solution.decisions;
      const int64_t excess = place(std::move(joint.solution));
      if (excess == 0 || within.budget_bytes == floor_bytes_) return;
      within.budget_bytes -= std::max(excess, graph_.budget_bytes / 100);
      within.budget_bytes = std::max(within.budget_bytes, floor_bytes_);
    }
  }

  /// Slower plans, of ever less memory: so whether there is an answer does not depend on the time that there is.
  void take_what_is_found_at_once() {
    constexpr int kTimes = 9;
    Graph within = graph_;
    SolveOptions at_once = options_, within_step = options_;
    at_once.time_limit_s = 0;
    within_step.across_steps = false;
    for (int i = 0; i < kTimes && !best_; ++i) {
      within.budget_bytes = graph_.budget_bytes - (graph_.budget_bytes - floor_bytes_) * i / (kTimes - 1);
      try {
        place(solve(within, at_once));
      } catch (const UserError&) {  // none for so little
        return;
      }
      const Search search(within, at_once);
      for (const SolveOptions& allowed : {options_, within_step})
        for (const Keep keep : {Keep::kHost, Keep::kAgain, Keep::kAgainEarly, Keep::kPacked}) {
          Decisions decisions = search.all_away(keep, allowed);
          if (auto schedule = search.scheduler().schedule(decisions, within.budget_bytes))
            place({.decisions = std::move(decisions),
                   .schedule = std::move(*schedule),
                   .budget_bytes = within.budget_bytes,
                   .bound_s = least_s(graph_)});
        }
    }
  }

  const Graph& graph_;
  const SolveOptions& options_;
  const int64_t floor_bytes_;
  const double started_s_;
  double bound_s_ = 0;
  int64_t least_bytes_ = 0;  // that a plan took with its places
  std::optional<PlacedSolution> best_;
};

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
    PlacedSolution made = PlacedSearch(within, next).run();
    out.bound_s = made.bound_s;
    return std::move(made.solution);
  });
  out.bound_s = std::min(out.bound_s, out.solution.schedule.expected_s);
  DOVETAIL_CHECK(place(out.solution), "a placed plan of {} bytes", out.layout.bytes);
  return out;
}

}  // namespace dovetail::plan
