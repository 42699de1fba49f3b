#include "dovetail/cli/plan/plan_config.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/median.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/cli/plan/largest_batch.h"
#include "dovetail/plan/model/budget.h"
#include "dovetail/plan/step/memory_record.h"
#include "dovetail/plan/step/plan_text.h"
#include "dovetail/train/memory/config_section.h"
#include "dovetail/train/resolve/load_config.h"
#include "dovetail/train/trial_step.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kEagerSteps = 3, kUnplannedSteps = 3, kPlannedSteps = 5;

train::RunConfig load(const PlanRequest& request) {
  train::RunConfig config = config_of(request);
  if (request.time_limit_s > 0) config.memory.solve_s = request.time_limit_s;
  if (config.kind() == train::RunKind::kRecommender)
    throw UserError(fmt::format("dovetail plan takes steps on random tokens or images, but {} "
                                "trains recommender.model = \"{}\", whose steps need its own rows",
                                request.config, config.recommender.model),
                    "dovetail train with memory.budget makes the plan and writes it to the run's "
                    "folder, with a report");
  if (config.memory.budget.empty())
    throw UserError(fmt::format("{} has no memory.budget to plan for", request.config),
                    "--set memory.budget=0.5x, or --fits to see whether it fits without one");
  return config;
}

/// Steps without a plan. The process' bytes are its growth since before the model was made.
struct Measured {
  double eager_s = 0;
  uint64_t eager_process_bytes = 0;
};

class ConfigPlan {
 public:
  explicit ConfigPlan(const PlanRequest& request)
      : request_(request),
        config_(load(request)),
        group_(comm::world_from_environment({.timeout_s = config_.comm.timeout_s})),
        run_(train::resolve_trial(config_, *group_)),
        options_(train::planned_step_options(config_.memory, run_.device)) {
    options_.curve_budgets =
        request.curve || !request.out.empty() ? plan::PlannedStep::kCurveBudgets : 0;
    user_check(group_->size() == 1, "dovetail plan looks at one rank, but this job has {}",
               group_->size());
    keep_freed_memory();  // like `dovetail train`
  }

  void make() {
    const plan::StepDevice& device = plan::step_device(run_.device);
    const int64_t before_bytes = device.held_bytes();
    const auto peak_bytes = [&] {
      return static_cast<uint64_t>(std::max<int64_t>(device.peak_held_bytes() - before_bytes, 0));
    };
    trial_ = train::make_trial(run_, group_, run_.maximum_samples, run_.micro_batch);
    trial_->run();
    device.reset_peak();
    std::vector<double> seconds(kEagerSteps);
    for (double& step_s : seconds) step_s = trial_->run();
    measured_ = {.eager_s = median(std::move(seconds)), .eager_process_bytes = peak_bytes()};
    device.give_back_freed();
    device.reset_peak();
    options_.idle_bytes = static_cast<uint64_t>(before_bytes);
    trial_->plan_memory(options_);
    for (int i = 0; i < kUnplannedSteps; ++i) trial_->run();
    check_floor();
    while (!plan().report()) trial_->run();
    for (int i = 0; i < kPlannedSteps; ++i) trial_->run();
  }

  void write() const {
    const std::filesystem::path out = request_.out;
    if (out.extension() == ".json") {
      write_file_atomically(out, plan::to_json(plan().view().plan, plan().graph()).dump(1) + "\n");
      write_file_atomically(out.parent_path() / "graph.json",
                            plan::to_json(plan().graph()).dump(1) + "\n");
      return;
    }
    std::filesystem::create_directories(out);
    plan().write(out);
  }

  Json json() const {
    const plan::Graph& graph = plan().graph();
    Json record = plan::memory_record(plan().view());
    record["step"]["eager_s"] = measured_.eager_s;
    record["process"]["eager_bytes"] = measured_.eager_process_bytes;
    for (const char* drawn : {"memory", "streams"}) record.erase(drawn);
    if (!request_.curve) record.erase("curve");
    Json out = {{"operations", graph.nodes.size()},
                {"storages", graph.tensors.size()},
                {"eager_peak_bytes", plan().report()->keep_all_bytes},
                {"floor_bytes", plan().report()->floor_bytes},
                {"budget_bytes", graph.budget_bytes},
                {"solve_s", plan().report()->solve_s}};
    out.update(record);
    return out;
  }

  std::string text() const {
    return plan::plan_text(*plan().report(), plan().view(),
                           {.layers = request_.layers,
                            .curve = request_.curve,
                            .eager = plan::EagerStep{.seconds = measured_.eager_s,
                                                     .process_bytes = static_cast<int64_t>(
                                                         measured_.eager_process_bytes)}});
  }

 private:
  const plan::PlannedStep& plan() const { return *trial_->memory_plan(); }

  void check_floor() const {
    plan::Graph graph = plan().graph();
    graph.budget_bytes = plan::parse_budget(config_.memory.budget, plan::keep_all_bytes(graph));
    const plan::SolveOptions how = plan::PlannedStep::solve_options(options_, run_.device);
    const plan::Floor floor = plan::floor_of(graph, how);
    if (graph.budget_bytes < floor.bytes)
      throw plan::below_floor(
          graph, floor, "memory.budget",
          help_below_floor(run_, group_, graph, config_.memory.budget, how, request_.config) +
              plan().what_would_lower_the_floor());
  }

  const PlanRequest& request_;
  const train::RunConfig config_;
  const std::shared_ptr<comm::Group> group_;
  const train::ResolvedRun run_;
  plan::PlannedStep::Options options_;
  std::unique_ptr<train::TrialStep> trial_;
  Measured measured_;
};

}  // namespace

train::RunConfig config_of(const PlanRequest& request) {
  std::vector<std::string> overrides = request.overrides;
  if (!request.budget.empty()) overrides.push_back("memory.budget=" + request.budget);
  return train::load_run_config(request.config, overrides);
}

void plan_config(const PlanRequest& request) {
  ConfigPlan plan(request);
  plan.make();
  if (!request.out.empty()) plan.write();
  if (request.json)
    print_json(plan.json());
  else
    print(plan.text());
}

}  // namespace dovetail::cli
