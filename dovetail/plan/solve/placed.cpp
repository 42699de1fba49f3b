#include "dovetail/plan/solve/placed.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/plan/solve/memory_floor.h"
#include "dovetail/plan/solve/search.h"

namespace dovetail::plan {

namespace {

/// Finds plans within the budget of `graph` with a time limit of 0: one of a search, and plans that
/// offload or drop everything.
class FoundAtOnce {
 public:
  FoundAtOnce(const Graph& graph, const SolveOptions& options) : graph_(graph), at_once_(options) {
    at_once_.start.reset();
    at_once_.time_limit_s = 0;
  }

  /// Returns the plans, or nothing if the search finds none.
  std::optional<std::vector<Solution>> visit(int64_t budget_bytes) {
    graph_.budget_bytes = budget_bytes;
    std::vector<Solution> out;
    try {
      add(out, solve(graph_, at_once_));
    } catch (const UserError&) {  // no plan for this budget
      return std::nullopt;
    }
    const Search search(graph_, at_once_);
    SolveOptions within_step = at_once_;
    within_step.across_steps = false;
    for (const SolveOptions& allowed : {at_once_, within_step})
      for (const Keep keep : {Keep::kHost, Keep::kAgain, Keep::kAgainEarly, Keep::kPacked}) {
        Decisions decisions = search.all_offloaded(keep, allowed);
        auto schedule = search.scheduler().schedule(decisions, budget_bytes);
        if (schedule)
          add(out, {.decisions = std::move(decisions),
                    .schedule = std::move(*schedule),
                    .budget_bytes = budget_bytes,
                    .bound_s = minimum_s(graph_)});
      }
    return out;
  }

  /// Computes addresses for a plan of the last visit.
  PlacedSolution with_places(Solution plan, int64_t too_many) const {
    return plan::with_places(graph_, std::move(plan), too_many);
  }

 private:
  static void add(std::vector<Solution>& to, Solution one) {
    for (const Solution& other : to)
      if (other.decisions == one.decisions) return;
    to.push_back(std::move(one));
  }

  Graph graph_;
  SolveOptions at_once_;
};

/// Returns the plan with the minimum memory among plans found at several budgets. These are
/// - descending budgets, down to the first without a plan,
/// - the floor, if all of these have a plan,
/// - otherwise budgets between the first without a plan and the last with one.
///
/// The search ends as soon as a plan takes at most `enough_bytes`. The budgets do not depend on it.
PlacedSolution smallest_placed(const Graph& graph, const SolveOptions& options,
                               int64_t enough_bytes) {
  constexpr int kDescending = 8, kBetween = 5;
  const int64_t floor = floor_of(graph, options).bytes;
  const int64_t all = std::max(keep_all_bytes(graph), floor);
  FoundAtOnce found(graph, options);
  std::optional<PlacedSolution> least;
  const auto is_enough = [&] { return least && least->bytes <= std::max(floor, enough_bytes); };
  // Plans that need little memory come first: addresses for the others are then rarely searched.
  const auto visit = [&](int64_t budget_bytes) {
    auto plans = found.visit(budget_bytes);
    if (!plans) return false;
    std::ranges::stable_sort(
        *plans, {}, [](const Solution& plan) { return plan.schedule.timeline.peak_bytes; });
    for (Solution& plan : *plans) {
      const int64_t least_bytes = least ? least->bytes : std::numeric_limits<int64_t>::max();
      PlacedSolution made = found.with_places(std::move(plan), least_bytes);
      if (made.bytes < least_bytes) least = std::move(made);
      if (is_enough()) break;
    }
    return true;
  };
  int64_t with = all;
  std::optional<int64_t> without;
  for (int i = 0; i < kDescending && !without && !is_enough(); ++i) {
    const int64_t budget = floor + ((all - floor) >> i);
    (visit(budget) ? with : without.emplace()) = budget;
  }
  if (!without && !is_enough() && !visit(floor)) without = floor;
  for (int i = 0; i < kBetween && without && !is_enough(); ++i) {
    const int64_t budget = *without + (with - *without) / 2;
    (visit(budget) ? with : *without) = budget;
  }
  DOVETAIL_CHECK(least.has_value(), "no plan keeps everything within {} bytes", all);
  return std::move(*least);
}

Floor with_gaps(Floor floor, int64_t placed_bytes) {
  floor.gaps_bytes = std::max<int64_t>(placed_bytes - floor.bytes, 0);
  floor.bytes += floor.gaps_bytes;
  return floor;
}

/// Search for a plan whose addresses are within the budget.
class PlacedSearch {
 public:
  PlacedSearch(const Graph& graph, const SolveOptions& options)
      : graph_(graph),
        options_(options),
        floor_bytes_(floor_of(graph, options).bytes),
        started_s_(now_seconds()) {}

  PlacedSolution run() {
    const bool has_plan = search();
    if (!best_) take_what_is_found_at_once(has_plan);
    best_->report = report_;
    best_->solution.seconds = now_seconds() - started_s_;
    return std::move(*best_);
  }

 private:
  /// Returns by how many bytes the addresses exceed the budget. Returns 0 if they fit; the plan is
  /// then kept if it is the fastest.
  int64_t take(PlacedSolution made) {
    if (made.bytes > graph_.budget_bytes) return made.bytes - graph_.budget_bytes;
    if (!best_ || made.solution.schedule.expected_s < best_->solution.schedule.expected_s)
      best_ = std::move(made);
    return 0;
  }

  /// Searches plans for the budget, then for smaller ones. Returns false if the budget itself has
  /// no plan, with or without addresses.
  bool search() {
    constexpr int kTimes = 6;
    Graph within = graph_;
    SolveOptions next = options_;
    for (int i = 0; i < kTimes; ++i) {
      // The remaining time is shared by this search and a next one.
      const double left_s = started_s_ + options_.time_limit_s - now_seconds();
      next.time_limit_s = std::max(left_s / (i + 1 < kTimes ? 2 : 1), 0.01);
      JointSolution joint;
      try {
        joint = solve_jointly(within, next);
      } catch (const UserError&) {
        return i > 0;
      }
      if (i == 0) report_ = joint.report;
      next.start = joint.solution.decisions;
      const int64_t excess = take(with_places(graph_, std::move(joint.solution)));
      if (excess == 0 || within.budget_bytes == floor_bytes_) return true;
      within.budget_bytes -= std::max(excess, graph_.budget_bytes / 100);
      within.budget_bytes = std::max(within.budget_bytes, floor_bytes_);
    }
    return true;
  }

  /// Takes slower plans for decreasing budgets. Success therefore does not depend on the time
  /// limit.
  void take_what_is_found_at_once(bool has_plan) {
    constexpr int kTimes = 9;
    for (int i = 0; i < kTimes && !best_ && has_plan; ++i) {
      const int64_t budget_bytes =
          graph_.budget_bytes - (graph_.budget_bytes - floor_bytes_) * i / (kTimes - 1);
      FoundAtOnce found(graph_, options_);
      auto plans = found.visit(budget_bytes);
      if (!plans) break;
      for (Solution& plan : *plans)
        take(found.with_places(std::move(plan), graph_.budget_bytes + 1));
    }
    if (best_) return;
    take_smallest();
  }

  /// Takes the plan with the minimum memory: found with the times of the step, or as in
  /// `floor_for_budget`.
  void take_smallest() {
    const int64_t budget = graph_.budget_bytes;
    PlacedSolution least = smallest_placed(graph_, options_, budget);
    const int64_t bytes = least.bytes;
    take(std::move(least));
    if (best_) return;
    Solution plan = smallest_placed(without_times(graph_), options_, budget).solution;
    const Scheduler scheduler(graph_, options_.fetches_wait);
    if (auto timed = scheduler.schedule(plan.decisions, plan.schedule.timeline.peak_bytes)) {
      plan.schedule = std::move(*timed);
      take(with_places(graph_, std::move(plan)));
    }
    if (!best_)
      throw below_floor(graph_, with_gaps(floor_of(graph_, options_), bytes), "the budget",
                        "raise the budget");
  }

  const Graph& graph_;
  const SolveOptions& options_;
  const int64_t floor_bytes_;
  const double started_s_;
  JointReport report_{.bound_s = minimum_s(graph_)};
  std::optional<PlacedSolution> best_;
};

}  // namespace

PlacedSolution with_places(const Graph& graph, Solution solution, int64_t too_many) {
  PlacedSolution out{.solution = std::move(solution)};
  out.layout = lay_out(graph, out.solution.schedule.plan, out.solution.schedule.timeline,
                       too_many - std::min(graph.base_bytes, too_many));
  out.bytes = out.layout.bytes + graph.base_bytes;
  return out;
}

Floor placed_floor_of(const Graph& graph, const SolveOptions& options) {
  SolveOptions how = options;
  how.fetches_wait = false;
  return with_gaps(floor_of(graph, how), smallest_placed(graph, how, 0).bytes);
}

Floor floor_for_budget(const Graph& graph, SolveOptions options, int64_t budget_bytes) {
  options.fetches_wait = false;
  const Floor floor = floor_of(graph, options);
  if (floor.bytes > budget_bytes) return floor;
  return with_gaps(floor, smallest_placed(without_times(graph), options, budget_bytes).bytes);
}

int64_t placed_floor_bytes(const Graph& graph, const SolveOptions& options,
                           const PlacedSolution& known) {
  return std::min(known.bytes, placed_floor_of(graph, options).bytes);
}

PlacedSolution solve_placed(const Graph& graph, const SolveOptions& options,
                            const PlanCache& cache) {
  SolveOptions how = options;
  how.fetches_wait = false;
  JointReport report{.bound_s = minimum_s(graph)};
  const auto fits = [&](const Solution& solution) {
    return with_places(graph, solution).bytes <= graph.budget_bytes;
  };
  Solution found =
      solve_known(cache, graph, how, fits, [&](const Graph& within, const SolveOptions& next) {
        PlacedSolution made = PlacedSearch(within, next).run();
        report = made.report;
        return std::move(made.solution);
      });
  PlacedSolution out = with_places(graph, std::move(found));
  out.report = report;
  out.report.bound_s = std::min(report.bound_s, out.solution.schedule.expected_s);
  DOVETAIL_CHECK(out.bytes <= graph.budget_bytes, "a placed plan of {} bytes", out.bytes);
  return out;
}

}  // namespace dovetail::plan
