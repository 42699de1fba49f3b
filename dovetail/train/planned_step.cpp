#include "dovetail/train/planned_step.h"

#include <ATen/ops/empty_like.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/ops/dispatch.h"
#include "dovetail/plan/budget.h"
#include "dovetail/plan/executor.h"
#include "dovetail/plan/packing.h"
#include "dovetail/plan/placed.h"
#include "dovetail/plan/profile.h"
#include "dovetail/plan/step_graph.h"

namespace dovetail {
namespace {

constexpr int kProfiledSteps = 4;  // the first warms up
constexpr int64_t kMeasuredCopyBytes = int64_t{128} << 20;
constexpr int kMeasuredCopies = 3;

}  // namespace

struct PlannedStep::State {
  std::function<void(const at::Tensor&)> work;
  plan::StepTensors tensors;
  Options options;
  at::Tensor tokens;  // the steps' input, always at one place
  int steps = 0;
  std::optional<plan::CapturedStep> captured;
  plan::StepGraph graph;
  plan::Plan plan;
  std::vector<plan::Executor::Run> profiled;
  std::optional<plan::Executor> executor;
  std::optional<MemoryPlanReport> report;

  void take(const at::Tensor& given) {
    if (!tokens.defined()) {
      tokens = at::empty_like(given);
      tensors.inputs.emplace_back("tokens", tokens);
    }
    user_check(given.sizes() == tokens.sizes(), "memory.budget: a step has tokens {}, but its plan is for {}",
               describe(given), describe(tokens));
    tokens.copy_(given);
  }

  void record() {
    plan::CapturedStep step = plan::record_step(
        [&] {
          work(tokens);
          return std::vector<at::Tensor>();
        },
        tensors);
    if (captured) plan::check_steady(*captured, step);
    captured = std::move(step);
  }

  /// Everything kept.
  void run_recorded() {
    if (profiled.empty()) {
      graph = plan::graph_of(*captured);
      graph.graph.budget_bytes = std::numeric_limits<int64_t>::max() / 8;
      plan = plan::keep_all(graph.graph);
      executor.emplace(*captured, graph, plan, plan::Executor::Options{});
    }
    profiled.push_back(executor->run());
  }

  void make_plan() {
    plan::set_times(graph.graph, plan, std::span(profiled).subspan(1));
    graph.graph.bandwidth = plan::measure_bandwidth(options.folder, kMeasuredCopyBytes, kMeasuredCopies);
    MemoryPlanReport made{.bandwidth = graph.graph.bandwidth};
    const plan::Timeline kept = plan::check(graph.graph, plan);
    made.keep_all_bytes = kept.peak_bytes;
    made.keep_all_s = kept.makespan_s;
    made.budget_bytes = graph.graph.budget_bytes = plan::parse_budget(options.budget, kept.peak_bytes);
    const plan::SolveOptions how{.compress = false, .least_bytes = plan::kPagedBytes, .time_limit_s = options.solve_s};
    made.floor_bytes = plan::floor_of(graph.graph, how).bytes;
    const plan::Solution solution = plan::solve_placed(graph.graph, how).solution;
    plan = solution.schedule.plan;
    made.predicted_s = solution.schedule.expected_s;
    made.solve_s = solution.seconds;
    made.nodes = static_cast<int>(graph.nodes.size());
    count_moved(made);
    executor.reset();  // gives the memory of keeping all back first
    executor.emplace(*captured, graph, plan, plan::Executor::Options{.folder = options.folder});
    made.step_bytes = executor->arena_bytes() + graph.graph.base_bytes;
    report = made;
  }

  void count_moved(MemoryPlanReport& made) const {
    std::vector<int> runs(graph.nodes.size());
    for (const plan::Action& action : plan.actions) {
      if (action.op == plan::Op::kOffload) made.offloaded_bytes += graph.graph.tensors[action.tensor].bytes;
      if (action.op == plan::Op::kCompute && runs[action.node]++ > 0)
        for (const int t : graph.graph.nodes[action.node].outputs) made.again_bytes += graph.graph.tensors[t].bytes;
    }
  }
};

nlohmann::ordered_json to_json(const MemoryPlanReport& report) {
  return {{"budget_bytes", report.budget_bytes},
          {"keep_all_bytes", report.keep_all_bytes},
          {"floor_bytes", report.floor_bytes},
          {"step_bytes", report.step_bytes},
          {"offloaded_bytes", report.offloaded_bytes},
          {"again_bytes", report.again_bytes},
          {"operations", report.nodes},
          {"predicted_s", report.predicted_s},
          {"keep_all_s", report.keep_all_s},
          {"solve_s", report.solve_s},
          {"to_slow_bytes_per_s", report.bandwidth.to_host},
          {"to_fast_bytes_per_s", report.bandwidth.to_device},
          {"slowdown", report.bandwidth.slowdown}};
}

PlannedStep::PlannedStep(std::function<void(const at::Tensor& tokens)> work, plan::StepTensors tensors, Options options)
    : state_(std::make_unique<State>()) {
  plan::parse_budget(options.budget, 1 << 30);  // says now what is wrong with it
  state_->work = std::move(work);
  state_->tensors = std::move(tensors);
  state_->options = std::move(options);
}

PlannedStep::~PlannedStep() = default;

void PlannedStep::run(const at::Tensor& tokens) {
  State& s = *state_;
  s.take(tokens);
  ++s.steps;
  if (s.steps == 1) return s.work(s.tokens);
  if (s.steps <= 3) return s.record();
  if (s.steps < 3 + kProfiledSteps) return s.run_recorded();
  if (s.report) {
    s.executor->run();
    return;
  }
  s.run_recorded();
  s.make_plan();
}

const std::optional<MemoryPlanReport>& PlannedStep::report() const { return state_->report; }

void PlannedStep::write(const std::filesystem::path& folder) const {
  if (!state_->report) return;
  write_file_atomically(folder / "graph.json", plan::to_json(state_->graph.graph).dump(1) + "\n");
  write_file_atomically(folder / "plan.json", plan::to_json(state_->plan, state_->graph.graph).dump(1) + "\n");
}

}  // namespace dovetail
