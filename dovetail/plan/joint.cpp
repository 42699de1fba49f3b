#include "dovetail/plan/joint.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/plan/joint_program.h"

namespace dovetail::plan {
namespace {

constexpr double kBetter = 1e-7;             // of a makespan: what counts as faster
constexpr double kPartOfImprovement = 0.25;  // of the greedy search's time, after each program

/// Longer than any plan worth having: every node ten times, every storage copied and packed at each of its gaps.
double ample_s(const Graph& graph, const Scheduler& scheduler) {
  constexpr int kRuns = 10;
  double out = 0;
  for (const GraphNode& node : graph.nodes) {
    double slowest_s = 0;
    for (const Algorithm& algorithm : node.algorithms) slowest_s = std::max(slowest_s, algorithm.time_s);
    out += kRuns * slowest_s;
  }
  for (const Gap& gap : scheduler.gaps()) {
    const auto bytes = static_cast<double>(graph.tensors[gap.tensor].bytes);
    out += bytes / graph.bandwidth.to_host + bytes / graph.bandwidth.to_device;
    for (const Codec& codec : graph.codecs) out += bytes / codec.encode_bytes_per_s + bytes / codec.decode_bytes_per_s;
  }
  return out;
}

class JointSearch {
 public:
  JointSearch(const Graph& graph, const SolveOptions& options, const MilpOptions& milp)
      : graph_(graph), options_(options), milp_(milp), scheduler_(graph) {}

  JointSolution run() {
    const double started_s = now_seconds();
    std::exception_ptr none;
    try {
      best_ = solve(graph_, options_);
    } catch (const UserError&) {
      if (graph_.budget_bytes < floor_of(graph_, options_).bytes) throw;
      none = std::current_exception();  // the program may find one
    }
    search();
    if (!best_) std::rethrow_exception(none);
    best_->seconds = now_seconds() - started_s;
    JointReport& report = report_;
    const double makespan_s = best_->schedule.timeline.makespan_s;
    report.bound_s = std::min(report.bound_s, makespan_s);
    if (makespan_s > 0) report.gap = (makespan_s - report.bound_s) / makespan_s;
    return {.solution = std::move(*best_), .report = report};
  }

 private:
  double makespan_s() const { return best_->schedule.timeline.makespan_s; }

  void offer(std::optional<Solution> found) {
    if (found && (!best_ || found->schedule.timeline.makespan_s < makespan_s())) best_ = std::move(found);
  }

  void search() {
    if (best_ && makespan_s() <= best_->bound_s * (1 + kBetter)) {
      report_.bound_s = makespan_s();
      return;  // nothing is faster than every node once, by its fastest algorithm
    }
    const double started_s = now_seconds();
    JointProgram joint(graph_, scheduler_, options_, best_ ? makespan_s() : ample_s(graph_, scheduler_));
    report_.columns = joint.program().columns();
    report_.rows = joint.program().rows();
    if (best_) start_from(joint, *best_);
    MilpOptions milp = milp_;
    double improving_s = 0;
    while (true) {
      report_.seconds = now_seconds() - started_s - improving_s;
      milp.time_limit_s = milp_.time_limit_s - report_.seconds;
      if (milp.time_limit_s <= 0) return;
      const MilpResult result = solve_milp(joint.program(), milp);
      if (report_.programs++ == 0 && !joint.cut_short() && result.status != MilpResult::kInfeasible)
        report_.bound_s = std::max(joint.seconds(result.bound), 0.0);
      report_.seconds = now_seconds() - started_s - improving_s;
      if (result.status == MilpResult::kInfeasible && best_ && !joint.cut_short()) report_.bound_s = makespan_s();
      if (result.values.empty()) return;
      const Decisions decisions = joint.decisions(result.values);
      const double before_s = now_seconds();
      SolveOptions options = options_;
      options.time_limit_s *= kPartOfImprovement;
      offer(improve(graph_, options, decisions));
      improving_s += now_seconds() - before_s;
      // What the program expects of the next solution is no better than of this one.
      if (best_ && result.status == MilpResult::kOptimal &&
          joint.seconds(result.objective) >= makespan_s() * (1 - kBetter)) {
        return;
      }
      joint.exclude(decisions);
      joint.program().start.reset();
      if (best_) milp.cutoff = joint.objective(makespan_s() * (1 - kBetter));
    }
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
  std::optional<Solution> best_;
  JointReport report_;
};

}  // namespace

JointSolution solve_jointly(const Graph& graph, const SolveOptions& options, const MilpOptions& milp) {
  return JointSearch(graph, options, milp).run();
}

}  // namespace dovetail::plan
