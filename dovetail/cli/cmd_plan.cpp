#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/cli/command.h"
#include "dovetail/cli/output.h"
#include "dovetail/plan/budget.h"
#include "dovetail/plan/profile.h"
#include "dovetail/plan/solve.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string mib(int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20)); }

class PlanCommand : public Command {
 public:
  std::string name() const override { return "plan"; }
  std::string summary() const override { return "Plan the memory of a captured training step, or check a plan of it"; }
  std::string example() const override { return "dovetail plan graph.json --budget 0.5x --out plan.json"; }

  void declare(Arguments& arguments) override {
    arguments.positional("graph", &graph_, "The step: graph.json, as docs/design/plan.md describes it")
        .is_required()
        .completes(Completion::kFile);
    arguments.option("--budget", "BYTES", &budget_,
                     "Memory of the device: 6GiB, or 0.5x of the peak with everything kept (the graph's own)");
    arguments.option("--without", "NAME", &without_, "Leave a technique out; may be given again")
        .one_of({"offload", "recompute", "compress", "algorithms", "across-steps"});
    arguments.option("--time-limit", "S", &time_limit_s_, "Seconds of solving (10)").range(0.01, 3600);
    arguments.option("--out", "FILE", &out_, "Write the plan").completes(Completion::kFile);
    arguments.option("--check", "PLAN", &check_, "Check this plan of the step instead, and simulate it")
        .completes(Completion::kFile);
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void check() override {
    user_check(check_.empty() || (out_.empty() && without_.empty()),
               "--check takes a plan as it is: --out and --without belong to planning");
  }

  void run() override {
    plan::Graph graph = plan::read_graph(graph_);
    plan::Graph unlimited = graph;
    unlimited.budget_bytes = std::numeric_limits<int64_t>::max();
    unlimited.host_bytes.reset();
    const plan::Timeline kept = plan::check(unlimited, plan::keep_all(graph));
    if (!budget_.empty()) graph.budget_bytes = plan::parse_budget(budget_, kept.peak_bytes);
    if (check_.empty())
      make(graph, kept);
    else
      judge(graph);
  }

 private:
  void judge(const plan::Graph& graph) const {
    const plan::Plan plan = plan::read_plan(check_, graph);
    try {
      const plan::Timeline timeline = plan::check(graph, plan);
      if (json_)
        print_json({{"valid", true},
                    {"peak_bytes", timeline.peak_bytes},
                    {"peak_at_s", timeline.peak_at_s},
                    {"makespan_s", timeline.makespan_s},
                    {"host_peak_bytes", timeline.host_peak_bytes},
                    {"again", timeline.again}});
      else
        print(fmt::format(
            "valid: peak {} MiB of {} MiB at {:.6g} s, ends at {:.6g} s, host {} MiB, {} operations again\n",
            mib(timeline.peak_bytes), mib(graph.budget_bytes), timeline.peak_at_s, timeline.makespan_s,
            mib(timeline.host_peak_bytes), timeline.again));
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
            .time_limit_s = time_limit_s_};
  }

  void make(const plan::Graph& graph, const plan::Timeline& kept) const {
    const plan::Solution made = plan::solve(graph, options());
    plan::Plan plan = made.schedule.plan;
    const plan::Timeline& timeline = made.schedule.timeline;
    plan.claimed_peak_bytes = timeline.peak_bytes;
    plan.claimed_makespan_s = timeline.makespan_s;
    if (!out_.empty()) write_file_atomically(out_, plan::to_json(plan, graph).dump(1) + "\n");
    struct Fate {
      int gaps = 0;
      int64_t bytes = 0;
    };
    std::map<plan::Keep, Fate> fates;
    const auto gaps = plan::find_gaps(graph);
    int64_t bytes_on_host = 0;  // when the step begins
    for (const int t : plan.starts_on_host) bytes_on_host += graph.tensors[t].bytes;
    for (size_t g = 0; g < gaps.size(); ++g) {
      if (gaps[g].wraps) continue;
      Fate& fate = fates[made.decisions.gaps[g]];
      ++fate.gaps;
      fate.bytes += graph.tensors[gaps[g].tensor].bytes;
    }
    if (json_) {
      Json decisions = Json::object();
      for (const auto& [keep, fate] : fates)
        decisions[std::string(plan::name(keep))] = {{"gaps", fate.gaps}, {"bytes", fate.bytes}};
      print_json({{"budget_bytes", graph.budget_bytes},
                  {"keep_all_bytes", kept.peak_bytes},
                  {"floor_bytes", plan::floor_of(graph, options()).bytes},
                  {"peak_bytes", timeline.peak_bytes},
                  {"makespan_s", timeline.makespan_s},
                  {"bound_s", made.bound_s},
                  {"again", timeline.again},
                  {"decisions", decisions},
                  {"starts_on_host", {{"tensors", plan.starts_on_host.size()}, {"bytes", bytes_on_host}}},
                  {"solve_s", made.seconds},
                  {"complete", made.complete}});
      return;
    }
    print(fmt::format("{} nodes, {} tensors; with everything kept {} MiB; floor {} MiB; budget {} MiB\n",
                      graph.nodes.size(), graph.tensors.size(), mib(kept.peak_bytes),
                      mib(plan::floor_of(graph, options()).bytes), mib(graph.budget_bytes)));
    print(fmt::format("solved in {:.1f} s{}\n\n", made.seconds,
                      made.complete ? "" : " (the time limit; --time-limit gives it more)"));
    std::vector<std::vector<std::string>> rows = {{"between two uses", "times", "MiB"}};
    for (const auto& [keep, fate] : fates)
      rows.push_back({std::string(plan::name(keep)), fmt::format("{}", fate.gaps), mib(fate.bytes)});
    print(format_table(rows, Heading::kFirstRow));
    if (!plan.starts_on_host.empty())
      print(
          fmt::format("\n{} storages of parameters and state, {} MiB, are on the host when the step begins and ends\n",
                      plan.starts_on_host.size(), mib(bytes_on_host)));
    print(
        fmt::format("\npeak {} MiB; {:.6g} s simulated, {:.3f}x of every operation once at its fastest ({:.6g} s); {} "
                    "operations again\n",
                    mib(timeline.peak_bytes), timeline.makespan_s, timeline.makespan_s / made.bound_s, made.bound_s,
                    timeline.again));
  }

  std::string graph_, budget_, out_, check_;
  std::vector<std::string> without_;
  double time_limit_s_ = 10;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_plan_command() { return std::make_unique<PlanCommand>(); }

}  // namespace dovetail::cli
