#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/cli/parse/answer.h"
#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/cli/parse/set_keys.h"
#include "dovetail/cli/plan/plan_config.h"
#include "dovetail/plan/model/budget.h"
#include "dovetail/plan/run/profile.h"
#include "dovetail/plan/show/tables.h"
#include "dovetail/plan/solve/memory_floor.h"
#include "dovetail/plan/solve/placed.h"
#include "dovetail/plan/solve/plan_cache.h"
#include "dovetail/plan/solve/solve.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kCurveBudgets = 8;

class PlanCommand : public Command {
 public:
  std::string name() const override { return "plan"; }
  std::string summary() const override {
    return "Plan the memory of a config's training step, check if it fits, or plan and check a "
           "recorded step";
  }
  std::string example() const override {
    return "dovetail plan configs/quickstart.toml --set memory.budget=0.5x";
  }

  void declare(Arguments& arguments) override {
    arguments
        .positional("step", &step_,
                    "Training config (TOML) whose step is recorded, or a recorded step: "
                    "graph.json, as in docs/design/plan.md")
        .is_required()
        .completes(Completion::kFile);
    arguments.option("--set", "KEY=VALUE", &request_.overrides,
                     "Override a key of the config, as section.key=value; repeatable");
    arguments.option("--budget", "BYTES", &request_.budget,
                     "Memory budget: 6GiB, or 0.5x of the peak with everything kept "
                     "(memory.budget; the graph's own)");
    arguments.flag("--fits", fits_,
                   "For a config: report if it fits on this machine, and the largest batch that "
                   "does; exit 1 if not");
    arguments.flag("--layers", request_.layers, "Show the decision for each layer, and its reason");
    arguments.flag("--curve", request_.curve,
                   "Solve for several budgets, and show the step time against the memory");
    arguments
        .option("--without", "NAME", &without_, "For a graph: leave a technique out; repeatable")
        .one_of({"offload", "recompute", "compress", "algorithms", "across-steps"});
    arguments
        .option("--time-limit", "S", &request_.time_limit_s,
                "Time limit of the search in seconds (memory.solve_s; 10 for a graph)")
        .range(0.01, 3600);
    arguments
        .option("--out", "FILE", &request_.out,
                "Write the plan (.json). For a config: also write graph.json next to it, or both "
                "into a folder")
        .completes(Completion::kFile);
    arguments
        .option("--check", "PLAN", &check_,
                "Check and simulate this plan of a graph instead of planning")
        .completes(Completion::kFile);
    arguments.flag("--json", request_.json, "Print the result as JSON");
  }

  void check() override {
    user_check(check_.empty() || (request_.out.empty() && without_.empty() && !request_.curve),
               "--check takes a plan as it is: --out, --without and --curve belong to planning");
    user_check(
        request_.time_limit_s == 0 || (check_.empty() && !fits_),
        "--time-limit is about the search for a plan, but {} searches for none; leave it out",
        fits_ ? "--fits" : "--check");
    check_set_once(request_.overrides, "memory.budget", !request_.budget.empty(), "--budget");
    check_set_once(request_.overrides, "memory.solve_s", request_.time_limit_s > 0, "--time-limit");
    if (of_graph()) {
      user_check(request_.overrides.empty() && !fits_,
                 "--set and --fits belong to a training config, but {} is a graph", step_);
    } else {
      user_check(check_.empty() && without_.empty(),
                 "--check and --without belong to a graph.json, but {} is a training config; "
                 "`--out FOLDER` writes its graph",
                 step_);
      user_check(!fits_ || (request_.out.empty() && !request_.curve && !request_.layers),
                 "--fits makes no plan: --out, --curve and --layers belong to planning");
    }
  }

  void run() override {
    check();
    if (of_graph()) return of_recorded();
    request_.config = step_;
    if (!fits_) return plan_config(request_);
    if (!log_whether_it_fits(request_)) throw AnswerIsNo();
  }

 private:
  bool of_graph() const { return std::filesystem::path(step_).extension() == ".json"; }

  void of_recorded() {
    plan::Graph graph = plan::read_graph(step_);
    user_check(!graph.nodes.empty(), "{} has no nodes: there is nothing to plan", step_);
    plan::Graph unlimited = graph;
    unlimited.budget_bytes = std::numeric_limits<int64_t>::max();
    unlimited.host_bytes.reset();
    const plan::Timeline kept = plan::check(unlimited, plan::keep_all(graph));
    if (!request_.budget.empty())
      graph.budget_bytes = plan::parse_budget(request_.budget, kept.peak_bytes);
    if (check_.empty())
      make(graph, kept);
    else
      agree_on_outcome(graph);
  }

  void agree_on_outcome(const plan::Graph& graph) const {
    const plan::Plan plan = plan::read_plan(check_, graph);
    try {
      const plan::Timeline timeline = plan::check(graph, plan);
      const plan::PlanOutcome outcome = plan::outcome_of(graph, plan, timeline);
      const int64_t places_bytes = plan::lay_out(graph, plan, timeline).bytes + graph.base_bytes;
      if (places_bytes > graph.budget_bytes)
        throw UserError(fmt::format("the plan holds {} bytes at its peak, but no places for its "
                                    "tensors were found within {} bytes: they take {}",
                                    timeline.peak_bytes, graph.budget_bytes, places_bytes),
                        "raise the budget to that", check_);
      if (request_.json) {
        Json json = {{"valid", true},
                     {"peak_bytes", timeline.peak_bytes},
                     {"places_bytes", places_bytes},
                     {"peak_at_s", timeline.peak_at_s},
                     {"makespan_s", timeline.makespan_s},
                     {"host_peak_bytes", timeline.host_peak_bytes},
                     {"again", timeline.again}};
        json.update(plan::to_json(outcome, graph));
        return print_json(json);
      }
      print(fmt::format(
          "valid: peak {} MiB in places of {} MiB, of {} MiB, at {:.6g} s, ends at {:.6g} s, host "
          "{} MiB, {} operations again\n\n",
          plan::mib(timeline.peak_bytes), plan::mib(places_bytes), plan::mib(graph.budget_bytes),
          timeline.peak_at_s, timeline.makespan_s, plan::mib(timeline.host_peak_bytes),
          timeline.again));
      print_outcome(outcome, graph);
    } catch (const plan::InvalidPlan& error) {
      throw UserError(fmt::format("{}: {}", check_, error.what()), "", check_);
    }
  }

  plan::SolveOptions options() const {
    const auto allowed = [&](const char* technique) {
      return std::find(without_.begin(), without_.end(), technique) == without_.end();
    };
    return {.offload = allowed("offload"),
            .recompute = allowed("recompute"),
            .compress = allowed("compress"),
            .across_steps = allowed("across-steps"),
            .algorithms = allowed("algorithms"),
            .time_limit_s = request_.time_limit_s > 0 ? request_.time_limit_s : 10};
  }

  void make(const plan::Graph& graph, const plan::Timeline& kept) const {
    const plan::Floor floor = plan::floor_of(graph, options());
    if (graph.budget_bytes < floor.bytes)
      throw plan::below_floor(graph, floor, request_.budget.empty() ? "budget_bytes" : "--budget",
                              "raise the budget, lower the batch, or allow more techniques");
    const plan::PlacedSolution placed =
        plan::solve_placed(graph, options(), plan::PlanCache(plan::PlanCache::default_folder()));
    const plan::Solution& made = placed.solution;
    const int64_t floor_bytes = plan::placed_floor_bytes(graph, options(), placed);
    const double bound_s = placed.report.bound_s,
                 gap = std::max(0.0, 1 - bound_s / made.schedule.expected_s);
    plan::Plan plan = made.schedule.plan;
    const plan::Timeline& timeline = made.schedule.timeline;
    plan.claimed_peak_bytes = timeline.peak_bytes;
    plan.claimed_makespan_s = timeline.makespan_s;
    if (!request_.out.empty())
      write_file_atomically(request_.out, plan::to_json(plan, graph).dump(1) + "\n");
    const plan::PlanOutcome outcome = plan::outcome_of(graph, plan, timeline);
    int64_t bytes_on_host = 0;  // bytes on the host when the step begins
    for (const int t : plan.starts_on_host) bytes_on_host += graph.tensors[t].bytes;
    std::vector<plan::TradeOff> curve;
    if (request_.curve)
      curve =
          plan::trade_off(graph, options(), floor_bytes, kept.peak_bytes, kCurveBudgets, placed);
    if (request_.json) {
      Json json = {
          {"budget_bytes", graph.budget_bytes},
          {"keep_all_bytes", kept.peak_bytes},
          {"floor_bytes", floor_bytes},
          {"peak_bytes", timeline.peak_bytes},
          {"places_bytes", placed.bytes},
          {"makespan_s", timeline.makespan_s},
          {"bound_s", bound_s},
          {"gap", gap},
          {"programs", placed.report.programs},
          {"program_columns", placed.report.columns},
          {"again", timeline.again},
          {"starts_on_host", {{"tensors", plan.starts_on_host.size()}, {"bytes", bytes_on_host}}},
          {"solve_s", made.seconds},
          {"complete", made.complete}};
      json.update(plan::to_json(outcome, graph));
      if (request_.curve) json["curve"] = plan::to_json(curve);
      return print_json(json);
    }
    print(fmt::format(
        "{} nodes, {} tensors; with everything kept {} MiB; floor {} MiB; budget {} MiB\n",
        graph.nodes.size(), graph.tensors.size(), plan::mib(kept.peak_bytes),
        plan::mib(floor_bytes), plan::mib(graph.budget_bytes)));
    print(fmt::format("solved in {:.1f} s: {}{}\n\n", made.seconds,
                      plan::bound_in_words(placed.report, made.schedule.expected_s),
                      made.complete ? "" : " (--time-limit gives the search more)"));
    print_outcome(outcome, graph);
    if (!plan.starts_on_host.empty())
      print(
          fmt::format("\n{} storages of parameters and state, {} MiB, are on the host when the "
                      "step begins and ends\n",
                      plan.starts_on_host.size(), plan::mib(bytes_on_host)));
    print(
        fmt::format("\npeak {} MiB in places of {} MiB; {:.6g} s simulated, {:.3f}x of every "
                    "operation once at its fastest ({:.6g} s); {} operations again\n",
                    plan::mib(timeline.peak_bytes), plan::mib(placed.bytes), timeline.makespan_s,
                    timeline.makespan_s / made.bound_s, made.bound_s, timeline.again));
    if (request_.curve) print("\n" + plan::curve_table(curve, kept.peak_bytes, outcome.once_s));
  }

  void print_outcome(const plan::PlanOutcome& outcome, const plan::Graph& graph) const {
    if (request_.layers) print(plan::layer_table(outcome, graph) + "\n");
    print(plan::decision_table(outcome, graph));
  }

  PlanRequest request_;
  std::string step_, check_;
  std::vector<std::string> without_;
  bool fits_ = false;
};

}  // namespace

std::unique_ptr<Command> make_plan_command() { return std::make_unique<PlanCommand>(); }

}  // namespace dovetail::cli
