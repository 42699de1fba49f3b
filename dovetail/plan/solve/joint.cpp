#include "dovetail/plan/solve/joint.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/plan/solve/covering_bound.h"
#include "dovetail/plan/solve/joint_program.h"
#include "dovetail/plan/solve/search.h"

namespace dovetail::plan {
namespace {

constexpr double kBetter = 1e-7;  // minimum relative gain in time that counts
constexpr double kPartOfImprovement =
    0.25;  // share of the greedy search's time, after each program

/// Time longer than any useful plan. Every node runs ten times, and every storage is copied and
/// packed in each of its gaps.
double ample_s(const Graph& graph, const Scheduler& scheduler) {
  constexpr int kRuns = 10;
  double out = 0;
  for (const GraphNode& node : graph.nodes) {
    double slowest_s = 0;
    for (const Algorithm& algorithm : node.algorithms)
      slowest_s = std::max(slowest_s, algorithm.time_s);
    out += kRuns * slowest_s;
  }
  for (const Gap& gap : scheduler.gaps()) {
    const auto bytes = static_cast<double>(graph.tensors[gap.tensor].bytes);
    out += bytes / graph.bandwidth.to_host + bytes / graph.bandwidth.to_device;
    for (const Codec& codec : graph.codecs)
      out += bytes / codec.encode_bytes_per_s + bytes / codec.decode_bytes_per_s;
  }
  return out;
}

/// Returns true if the program has too many entries in its memory rows (approximately). It could
/// not be solved in the time for planning.
bool is_too_large(const Graph& graph, const Scheduler& scheduler) {
  constexpr int64_t kMost = 60'000;
  int64_t covered = 0;
  for (const Gap& gap : scheduler.gaps())
    covered += gap.wraps ? static_cast<int64_t>(graph.nodes.size()) - (gap.from - gap.to)
                         : gap.to - gap.from;
  return covered > kMost;
}

class JointSearch {
 public:
  JointSearch(const Graph& graph, const SolveOptions& options, const MilpOptions& milp)
      : graph_(graph),
        options_(options),
        milp_(milp),
        scheduler_(graph, options.fetches_wait),
        search_(graph, options_) {}

  JointSolution run() {
    const double started_s = now_seconds();
    std::exception_ptr none;
    try {
      search_.offer(solve(graph_, options_));
    } catch (const UserError&) {
      if (graph_.budget_bytes < floor_of(graph_, options_).bytes) throw;
      none = std::current_exception();  // the program may find a plan
    }
    report_.bound_s = minimum_s(graph_);
    if (!is_closed()) search();
    if (!search_.best()) std::rethrow_exception(none);
    search_.keep_what_need_not_wrap();
    Solution best = std::move(*search_.best());
    best.budget_bytes = graph_.budget_bytes;
    best.bound_s = minimum_s(graph_);
    best.seconds = now_seconds() - started_s;
    best.complete = is_closed(best.schedule.expected_s);
    report_.bound_s = std::min(report_.bound_s, best.schedule.expected_s);
    report_.gap = gap_of(best.schedule.expected_s);
    return {.solution = std::move(best), .report = report_};
  }

 private:
  bool has_plan() { return search_.best().has_value(); }
  double expected_s() { return search_.best()->schedule.expected_s; }
  double gap_of(double expected_s) const {
    return expected_s > report_.bound_s ? (expected_s - report_.bound_s) / expected_s : 0;
  }
  bool is_closed(double expected_s) const {
    return gap_of(expected_s) <= std::max(milp_.relative_gap, kBetter);
  }
  bool is_closed() { return has_plan() && is_closed(expected_s()); }

  void search() {
    const double started_s = now_seconds();
    report_.too_large = is_too_large(graph_, scheduler_);
    if (report_.too_large) {
      auto bound = std::async(std::launch::async, [this] {
        return covering_bound(graph_, options_, milp_.time_limit_s);
      });
      search_.anneal([&] { return now_seconds() > started_s + milp_.time_limit_s; });
      const CoveringBound found = bound.get();
      report_.bound_s = std::max(report_.bound_s, found.seconds);
      report_.columns = found.columns;
      report_.rows = found.rows;
      report_.programs = found.columns > 0 ? 1 : 0;
      report_.seconds = now_seconds() - started_s;
      return;
    }
    JointProgram joint(graph_, scheduler_, options_,
                       has_plan() ? expected_s() : ample_s(graph_, scheduler_));
    report_.columns = joint.program().columns();
    report_.rows = joint.program().rows();
    if (has_plan()) start_from(joint, *search_.best());
    const bool over = solve_programs(joint, started_s);
    const double until_s = now_seconds() + options_.time_limit_s - improving_s_;
    if (has_plan() && !over) search_.anneal([&] { return now_seconds() > until_s; });
  }

  /// Solves the program, and others that exclude previous solutions. Returns true if the search is
  /// over: no faster plan is expected. Returns false if the time is over.
  bool solve_programs(JointProgram& joint, double started_s) {
    MilpOptions milp = milp_;
    while (true) {
      report_.seconds = now_seconds() - started_s - improving_s_;
      milp.time_limit_s = milp_.time_limit_s - report_.seconds;
      const double left_s = options_.time_limit_s - improving_s_;
      if (milp.time_limit_s <= 0 || left_s <= 0) return false;
      const MilpResult result = solve_beside(joint.program(), milp);
      if (report_.programs++ == 0 && result.status != MilpResult::kInfeasible)
        report_.bound_s = std::max(report_.bound_s, joint.seconds(result.bound));
      report_.seconds = now_seconds() - started_s - improving_s_;
      if (result.status == MilpResult::kInfeasible && has_plan()) report_.bound_s = expected_s();
      if (result.values.empty()) return result.status == MilpResult::kInfeasible;
      const Decisions decisions = joint.decisions(result.values);
      const double before_s = now_seconds();
      SolveOptions options = options_;
      options.time_limit_s = std::min(left_s, kPartOfImprovement * options_.time_limit_s);
      search_.offer(that_fit(joint, decisions));
      if (const auto improved = improve(graph_, options, decisions)) search_.offer(*improved);
      improving_s_ += now_seconds() - before_s;
      // Stop if the program expects no later solution to be faster than the best plan.
      if (is_closed() || (has_plan() && result.status == MilpResult::kOptimal &&
                          joint.seconds(result.objective) >= expected_s() * (1 - kBetter)))
        return true;
      joint.exclude(decisions);
      joint.program().start.reset();
      if (has_plan()) milp.cutoff = joint.objective(expected_s() * (1 - kBetter));
    }
  }

  /// Returns decisions that fit the budget, if that only needs storages that the program leaves out
  /// to leave the device. Otherwise returns `decisions`.
  Decisions that_fit(const JointProgram& joint, const Decisions& decisions) const {
    Decisions out = decisions;
    while (true) {
      Misfit misfit;
      if (scheduler_.schedule(out, graph_.budget_bytes, &misfit)) return out;
      const int gap = misfit.bytes > 0 ? joint.left_out_at(misfit.node, out) : -1;
      if (gap < 0) return decisions;
      out.gaps[gap] = Keep::kHost;
    }
  }

  /// Solves the program in a process of its own. The search continues meanwhile.
  MilpResult solve_beside(const LinearProgram& program, const MilpOptions& milp) {
    auto result = std::async(std::launch::async, [&] { return solve_milp(program, milp); });
    search_.anneal(
        [&] { return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
    return result.get();
  }

  void start_from(JointProgram& joint, const Solution& solution) {
    std::vector<double> point = joint.point(solution.decisions, solution.schedule);
    if (joint.program().violation(point) > kMilpTolerance) return;
    joint.program().start = std::move(point);
    report_.started = true;
  }

  const Graph& graph_;
  const SolveOptions& options_;
  const MilpOptions& milp_;
  const Scheduler scheduler_;
  Search search_;
  JointReport report_;
  double improving_s_ = 0;  // time in which plans from programs were improved
};

}  // namespace

std::string bound_in_words(const JointReport& report, double expected_s) {
  const double gap = std::max(0.0, 1 - report.bound_s / expected_s);
  const std::string near = fmt::format("within {:.1f} % of ", 100 * gap);
  if (report.programs > 0)
    return near + fmt::format("the bound that {} program of {} columns proves",
                              report.too_large ? "a linear" : "an integer", report.columns);
  return near + "every operation once at its fastest";
}

JointSolution solve_jointly(const Graph& graph, const SolveOptions& options,
                            const MilpOptions& milp) {
  return JointSearch(graph, options, milp).run();
}

JointSolution solve_jointly(const Graph& graph, const SolveOptions& options) {
  // Shares of the time. Improvements take at most as long as the greedy search.
  constexpr double kGreedy = 0.25, kPrograms = 0.5;
  SolveOptions greedy = options;
  greedy.time_limit_s *= kGreedy;
  return solve_jointly(graph, greedy,
                       MilpOptions{.time_limit_s = kPrograms * options.time_limit_s});
}

}  // namespace dovetail::plan
