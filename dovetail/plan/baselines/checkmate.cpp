#include "dovetail/plan/baselines/checkmate.h"

#include <algorithm>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/plan/baselines/baselines.h"

namespace dovetail::plan {
namespace {

constexpr double kUnits = 100;  // solver units of the budget, and of the time of every node once

double time_of(const StageGraph& graph, const Stages& stages) {
  double out = 0;
  for (int t = 0; t < graph.nodes(); ++t)
    for (int i = 0; i <= t; ++i)
      if (stages.runs[t][i]) out += smallest_workspace_algorithm(graph.graph().nodes[i]).time_s;
  return out;
}

bool fits(const StageGraph& graph, const Stages& stages) {
  try {
    check(graph.graph(), plan_of(graph, stages, smallest_workspace_algorithms(graph.graph())));
    return true;
  } catch (const InvalidPlan&) {
    return false;
  }
}

}  // namespace

CheckmateProgram::CheckmateProgram(const StageGraph& graph, double budget_bytes)
    : graph_(graph), budget_bytes_(budget_bytes - static_cast<double>(graph.resident_bytes())) {
  double once_s = 0;
  for (const GraphNode& node : graph.graph().nodes)
    once_s += smallest_workspace_algorithm(node).time_s;
  if (once_s > 0) unit_s_ = once_s / kUnits;
  unit_bytes_ = std::max(budget_bytes_, 1.0) / kUnits;
  add_columns();
  add_order();
  for (int t = 0; t < graph_.nodes(); ++t) {
    add_frees(t);
    add_memory(t);
  }
}

double CheckmateProgram::made(int node) const {
  double out = 0;
  for (const int value : graph_.makes(node))
    out += static_cast<double>(graph_.graph().tensors[value].bytes);
  return out;
}

void CheckmateProgram::add_columns() {
  const auto nodes = static_cast<size_t>(graph_.nodes());
  runs_.assign(nodes, std::vector(nodes, -1));
  used_ = runs_;
  keeps_.assign(nodes + 1, std::vector(graph_.graph().tensors.size(), -1));
  freed_.resize(nodes);
  for (int t = 0; t < graph_.nodes(); ++t)
    for (int i = 0; i <= t; ++i) {
      const double time = smallest_workspace_algorithm(graph_.graph().nodes[i]).time_s / unit_s_;
      if (graph_.may_run(t, i)) runs_[t][i] = program_.add_column(time, i == t ? 1 : 0, 1, true);
      const double most = mass(budget_bytes_);
      used_[t][i] = program_.add_column(0, 0, std::max(most, 0.0), false);
    }
  // The stage after the last is the end of the step.
  for (int t = 0; t <= graph_.nodes(); ++t)
    for (const int value : graph_.values())
      if (graph_.producer(value) < t && t <= graph_.last_use(value))
        keeps_[t][value] = program_.add_column(0, t == graph_.nodes() ? 1 : 0, 1, true);
}

void CheckmateProgram::add_order() {
  const double most = LinearProgram::kInfinity;
  for (int t = 0; t <= graph_.nodes(); ++t) {
    for (const int value : graph_.values()) {
      if (t == 0 || keeps(t, value) < 0) continue;
      std::vector<std::pair<int, double>> row = {{keeps(t, value), -1}};
      if (const int run = runs(t - 1, graph_.producer(value)); run >= 0) row.emplace_back(run, 1);
      if (const int before = keeps(t - 1, value); before >= 0) row.emplace_back(before, 1);
      program_.add_row(0, most, std::move(row));
    }
    for (int i = 0; t < graph_.nodes() && i <= t; ++i)
      for (const int value : graph_.reads(i)) {
        if (runs(t, i) < 0) break;
        std::vector<std::pair<int, double>> row = {{runs(t, i), -1}};
        if (const int run = runs(t, graph_.producer(value)); run >= 0) row.emplace_back(run, 1);
        if (keeps(t, value) >= 0) row.emplace_back(keeps(t, value), 1);
        program_.add_row(0, most, std::move(row));
      }
  }
}

void CheckmateProgram::add_frees(int t) {
  for (int i = 0; i <= t; ++i) {
    if (runs(t, i) < 0) continue;
    for (const auto* list : {&graph_.reads(i), &graph_.makes(i)})
      for (const int value : *list) {
        const int column = program_.add_column(0, 0, 1, true);
        freed_[t].push_back({i, value, column});
        const auto at_most_not = [&](int other) {
          if (other >= 0) program_.add_row(-LinearProgram::kInfinity, 1, {{column, 1}, {other, 1}});
        };
        program_.add_row(-LinearProgram::kInfinity, 0, {{column, 1}, {runs(t, i), -1}});
        at_most_not(keeps(t + 1, value));
        for (const int reader : graph_.readers(value))
          if (reader > i && reader <= t) at_most_not(runs(t, reader));
      }
  }
}

void CheckmateProgram::add_memory(int t) {
  size_t next = 0;
  for (int i = 0; i <= t; ++i) {
    // Row: used - used before + freed after the previous run - made by this run = 0.
    std::vector<std::pair<int, double>> row = {{used_[t][i], 1}};
    if (i == 0)
      for (const int value : graph_.values()) {
        if (keeps(t, value) >= 0)
          row.emplace_back(keeps(t, value),
                           -mass(static_cast<double>(graph_.graph().tensors[value].bytes)));
      }
    else
      row.emplace_back(used_[t][i - 1], -1);
    for (; next < freed_[t].size() && freed_[t][next].node < i; ++next)
      row.emplace_back(
          freed_[t][next].column,
          mass(static_cast<double>(graph_.graph().tensors[freed_[t][next].value].bytes)));
    if (runs(t, i) >= 0) row.emplace_back(runs(t, i), -mass(made(i)));
    program_.add_row(0, 0, std::move(row));
    const double workspace = mass(static_cast<double>(graph_.smallest_workspace(i)));
    if (workspace > 0 && runs(t, i) >= 0)
      program_.add_row(-LinearProgram::kInfinity, mass(budget_bytes_),
                       {{used_[t][i], 1}, {runs(t, i), workspace}});
  }
}

std::vector<std::vector<double>> CheckmateProgram::keeps(const std::vector<double>& values) const {
  std::vector out(graph_.graph().nodes.size(), std::vector<double>(graph_.graph().tensors.size()));
  for (size_t t = 0; t < out.size(); ++t)
    for (size_t v = 0; v < out[t].size(); ++v)
      if (keeps_[t][v] >= 0) out[t][v] = values[keeps_[t][v]];
  return out;
}

Stages CheckmateProgram::stages(const std::vector<double>& values) const {
  Stages out = no_stages(graph_);
  for (size_t t = 0; t < out.runs.size(); ++t) {
    for (size_t i = 0; i <= t; ++i) out.runs[t][i] = runs_[t][i] >= 0 && values[runs_[t][i]] > 0.5;
    for (size_t v = 0; v < out.keeps[t].size(); ++v)
      out.keeps[t][v] = keeps_[t][v] >= 0 && values[keeps_[t][v]] > 0.5;
  }
  return out;
}

std::vector<double> CheckmateProgram::point(const Stages& stages) const {
  std::vector<double> out(program_.columns());
  const auto kept = [&](int t, int value) {
    return keeps(t, value) >= 0 && (t == graph_.nodes() || stages.keeps[t][value] != 0);
  };
  for (int t = 0; t <= graph_.nodes(); ++t)
    for (const int value : graph_.values())
      if (kept(t, value)) out[keeps(t, value)] = 1;
  for (int t = 0; t < graph_.nodes(); ++t) {
    double used = 0;
    for (const int value : graph_.values())
      if (kept(t, value)) used += static_cast<double>(graph_.graph().tensors[value].bytes);
    size_t next = 0;
    for (int i = 0; i <= t; ++i) {
      const bool runs_now = runs(t, i) >= 0 && stages.runs[t][i] != 0;
      if (runs_now) {
        out[runs(t, i)] = 1;
        used += made(i);
      }
      out[used_[t][i]] = mass(used);
      for (; next < freed_[t].size() && freed_[t][next].node == i; ++next) {
        const int value = freed_[t][next].value;
        const auto& readers = graph_.readers(value);
        if (!runs_now || kept(t + 1, value) ||
            std::any_of(readers.begin(), readers.end(), [&](int reader) {
              return reader > i && reader <= t && stages.runs[t][reader] != 0;
            }))
          continue;
        out[freed_[t][next].column] = 1;
        used -= static_cast<double>(graph_.graph().tensors[value].bytes);
      }
    }
  }
  return out;
}

std::optional<CheckmateSolution> solve_checkmate(const Graph& graph, const MilpOptions& options,
                                                 const std::optional<Stages>& start) {
  const StageGraph stages(graph);
  const double once_s = time_of(stages, no_stages(stages));
  if (start && fits(stages, *start) && time_of(stages, *start) <= once_s)
    return CheckmateSolution{
        .stages = *start, .time_s = once_s, .bound_s = once_s};  // no stages are faster
  CheckmateProgram checkmate(stages, static_cast<double>(graph.budget_bytes));
  if (start) {
    std::vector<double> point = checkmate.point(*start);
    if (checkmate.program().violation(point) <= kMilpTolerance)
      checkmate.program().start = std::move(point);
  }
  const MilpResult result = solve_milp(checkmate.program(), options);
  if (result.values.empty()) return {};
  CheckmateSolution out{.stages = checkmate.stages(result.values),
                        .bound_s = std::max(checkmate.seconds(result.bound), once_s),
                        .seconds = result.seconds};
  if (auto fewest = runs_for(stages, out.stages.keeps); fewest && fits(stages, *fewest))
    out.stages = std::move(*fewest);
  out.time_s = time_of(stages, out.stages);
  return out;
}

std::optional<CheckmateSolution> round_checkmate(const Graph& graph, const MilpOptions& options,
                                                 double epsilon) {
  const StageGraph stages(graph);
  CheckmateProgram checkmate(stages, (1 - epsilon) * static_cast<double>(graph.budget_bytes));
  MilpOptions relaxed = options;
  relaxed.relax = true;
  const MilpResult result = solve_milp(checkmate.program(), relaxed);
  if (result.values.empty()) return {};
  std::vector<std::vector<char>> keeps;
  for (const auto& stage : checkmate.keeps(result.values)) {
    auto& row = keeps.emplace_back();
    for (const double value : stage) row.push_back(value >= 0.5);
  }
  auto made = runs_for(stages, std::move(keeps));
  if (!made || !fits(stages, *made)) return {};
  CheckmateSolution out{.stages = std::move(*made), .seconds = result.seconds};
  out.time_s = time_of(stages, out.stages);
  return out;
}

}  // namespace dovetail::plan
