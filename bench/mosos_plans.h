#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/plan/baselines/baselines.h"
#include "dovetail/plan/baselines/swapping.h"
#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/solve/joint.h"

namespace dovetail::plan {

/// Result of a plan after check and simulation. `simulated_s` includes the slowdown of computing
/// beside copies.
struct Row {
  std::string name;
  double predicted_s = 0, simulated_s = 0, solve_s = 0;
  std::optional<double> gap;  // to a proven bound, if there is one
  double convolution_s = 0, other_s = 0;
  int64_t peak_bytes = 0, moved_bytes = 0, again_bytes = 0, packed_bytes = 0;
  bool found = false;
};

inline Row row_of(const Graph& graph, const std::string& name, const Plan& plan) {
  Row out{.name = name, .found = true};
  const Timeline timeline = check(graph, plan);
  out.simulated_s = expected_s(graph, plan, timeline);
  out.peak_bytes = timeline.peak_bytes;
  std::vector<char> ran(graph.nodes.size());
  for (const Action& action : plan.actions) {
    const int64_t bytes = action.tensor >= 0 ? graph.tensors[action.tensor].bytes : 0;
    if (action.op == Op::kOffload || action.op == Op::kPrefetch) out.moved_bytes += bytes;
    if (action.op == Op::kCompress) out.packed_bytes += bytes;
    if (action.op != Op::kCompute) continue;
    const GraphNode& node = graph.nodes[action.node];
    const bool convolution = node.name.starts_with("aten::convolution");
    (convolution ? out.convolution_s : out.other_s) += node.algorithms[action.algorithm].time_s;
    if (ran[action.node]++)
      for (const int t : node.outputs) out.again_bytes += graph.tensors[t].bytes;
  }
  return out;
}

/// Returns the row of a search: its expected time, its duration and its proven gap.
inline Row row_of(const Graph& graph, const std::string& name, const JointSolution& made) {
  Row out = row_of(graph, name, made.solution.schedule.plan);
  out.predicted_s = made.solution.schedule.expected_s;
  out.solve_s = made.solution.seconds;
  const double bound_s = std::max(made.report.bound_s, made.solution.bound_s);
  out.gap = std::max(0.0, 1 - bound_s / out.predicted_s);
  return out;
}

/// Returns the decisions whose schedule is the fastest, for a search to start from.
inline std::optional<Decisions> fastest_of(const Graph& graph, std::vector<Decisions> decisions) {
  const Scheduler scheduler(graph);
  std::optional<Decisions> out;
  double best_s = std::numeric_limits<double>::infinity();
  for (Decisions& one : decisions) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (graph.nodes[n].algorithms.size() == 1) one.algorithms[n] = 0;
    const auto schedule = scheduler.schedule(one, graph.budget_bytes);
    if (!schedule || schedule->expected_s >= best_s) continue;
    best_s = schedule->expected_s;
    out = std::move(one);
  }
  return out;
}

/// Plans of a step at several budgets, smallest first. Searches also start from the decisions that
/// fitted a smaller budget, so more memory is not slower. Each strategy without a choice of
/// algorithms plans for several views of their costs (Seen). Auto follows, and the fastest plan
/// counts.
class Planning {
 public:
  /// A search may take `time_limit_s`. A strategy with several views shares it among them.
  Planning(const Graph& graph, double time_limit_s) : graph_(graph), limit_s_(time_limit_s) {}

  /// Rows of all strategies. The joint plans come last: they begin from the plans before them.
  std::vector<Row> rows() {
    rows_.clear();
    checkmate_auto();
    str_auto();
    search("MONeT", {.offload = false, .compress = false, .across_steps = false});
    for (const auto& strategy : {vdnn, superneurons, capuchin}) add(strategy(graph_));
    search("joint", joint_options());
    SolveOptions packing = joint_options();
    packing.compress = true;
    search("joint + compress", packing);
    return rows_;
  }

 private:
  static constexpr Seen kSeen[] = {Seen::kLeastWorkspace, Seen::kFastestTime, Seen::kFastest};
  static constexpr double kViews = std::size(kSeen);

  static SolveOptions joint_options() {
    return {.compress = false, .across_steps = false, .least_bytes = kPagedBytes};
  }

  /// Keeps decisions for later searches with at least the techniques of `options`.
  void keep(const Decisions& decisions, const SolveOptions& options) {
    if (!options.offload) recomputing_.push_back(decisions);
    if (!options.compress) moving_.push_back(decisions);
    found_.push_back(decisions);
  }

  void add(const Baseline& made) {
    if (!made.plan) {
      rows_.push_back({.name = made.name, .solve_s = made.seconds});
      return;
    }
    rows_.push_back(row_of(graph_, made.name, *made.plan));
    rows_.back().predicted_s = rows_.back().simulated_s;
    rows_.back().solve_s = made.seconds;
    keep(decisions_of(graph_, *made.plan), joint_options());
  }

  /// Keeps the faster plan of a strategy.
  void offer(Baseline& best, Plan plan) const {
    const double time_s = expected_s(graph_, plan, check(graph_, plan));
    if (best.plan && time_s >= best.time_s) return;
    best.plan = std::move(plan);
    best.time_s = time_s;
  }

  void checkmate_auto() {
    const double started_s = now_seconds();
    Baseline best{.name = "Checkmate-Auto"};
    for (const Seen seen : kSeen) {
      // The search for a start solution takes up to another third of this.
      const Baseline made =
          checkmate(graph_, {.time_limit_s = 0.7 * limit_s_ / kViews, .relative_gap = 0.01}, seen);
      if (!made.plan) continue;
      recomputing_.push_back(decisions_of(graph_, *made.plan));
      offer(best, choose_algorithms(graph_, *made.plan, seen_as(graph_, seen).algorithms));
    }
    best.seconds = now_seconds() - started_s;
    add(best);
    if (best.plan) recomputing_.push_back(found_.back());
  }

  void str_auto() {
    const double started_s = now_seconds();
    Baseline best{.name = "STR-Auto"};
    for (const Seen seen : kSeen) {
      const SeenGraph view = seen_as(graph_, seen);
      SolveOptions options = joint_options();
      options.time_limit_s = limit_s_ / kViews / 4;
      options.start = fastest_of(view.graph, recomputing_);
      try {
        JointSolution made = solve_jointly(view.graph, options, milp(limit_s_ / kViews));
        Decisions decisions = std::move(made.solution.decisions);
        decisions.algorithms = view.algorithms;
        if (auto plan = with_auto(graph_, std::move(decisions))) offer(best, std::move(*plan));
      } catch (const UserError&) {  // no plan within the budget by this view
      }
    }
    best.seconds = now_seconds() - started_s;
    add(best);
  }

  void search(const std::string& name, SolveOptions options) {
    options.time_limit_s = limit_s_ / 4;
    options.start = fastest_of(graph_, options.compress  ? found_
                                       : options.offload ? moving_
                                                         : recomputing_);
    const double started_s = now_seconds();
    try {
      const JointSolution made = solve_jointly(graph_, options, milp(limit_s_));
      rows_.push_back(row_of(graph_, name, made));
      keep(made.solution.decisions, options);
    } catch (const UserError& error) {
      fmt::print("  {}: {}\n", name, error.what());
      rows_.push_back({.name = name, .solve_s = now_seconds() - started_s});
    }
  }

  static MilpOptions milp(double limit_s) {
    return {.time_limit_s = 0.45 * limit_s, .relative_gap = 0.01};
  }

  const Graph& graph_;
  const double limit_s_;
  std::vector<Decisions> recomputing_;  // decisions without copies
  std::vector<Decisions> moving_;       // decisions without compression
  std::vector<Decisions> found_;        // all decisions
  std::vector<Row> rows_;
};

}  // namespace dovetail::plan
