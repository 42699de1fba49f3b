// Holds the order of layouts of a layer of experts that the cost model predicts against the
// measured order.
//
// usage: ./dev bench expert_plans [--ranks N] [--tokens T] [--width C] [--hidden H] [--experts E]
//                                 [--rounds N] [--skew Z] [--out FILE]
//
// The cost model is measured first, on the same ranks (`dovetail bench comm`). Then 20 layouts take
// turns within a round: r, overlap, the all-to-all of four ranks or more, shadowed experts. Forward
// and backward, routing included. The best round of each counts, on the slowest rank. With RANK in
// the environment the ranks are processes, as torchrun starts them. Otherwise they are threads with
// one compute thread each.
//
// Claim: if two layouts differ by more than 5 % in measured time, the prediction has them in this
// order. Exit code 1 when a pair does not. Some pairs differ so in one half of the rounds only. The
// report counts them apart: a second run would give them another order.
//
// layer: moe
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bench/expert_job.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/cost_model.h"
#include "dovetail/moe/simulate.h"

namespace {

using namespace dovetail;
using namespace dovetail::moe;
using namespace dovetail::bench;

constexpr double kClose = 1.05;
constexpr size_t kPlans = 20;

struct Options : LayerSizes {
  int64_t rounds = 9;
  double skew = 0.7;
  std::string out;
};

struct Plan {
  LayerPlan plan;
  double predicted_s = 0;
  std::array<double, 2> half_s = {std::numeric_limits<double>::infinity(),
                                  std::numeric_limits<double>::infinity()};  ///< even, odd rounds

  double measured_s() const { return std::ranges::min(half_s); }
};

/// Returns 1 if a took longer by more than 5 %, -1 if b did, otherwise 0.
int order(double a, double b) { return a > kClose * b ? 1 : b > kClose * a ? -1 : 0; }

/// The layouts: r = 0, then by overlap and shadowed experts, alternating the all-to-alls.
std::vector<Plan> plans_for(int ranks) {
  std::vector<Plan> plans = {{{.shards = 0}}};
  for (const int overlap : {1, 2, 3, 4, 6, 8}) {
    for (const int shadowed : {0, 1, 2, 4}) {
      for (const auto algorithm :
           {comm::AllToAllAlgorithm::kFlexible, comm::AllToAllAlgorithm::kHierarchicalFlexible}) {
        if (comm::is_hierarchical(algorithm) && ranks < 4) continue;
        plans.push_back({{.algorithm = algorithm, .overlap = overlap, .shadowed = shadowed}});
      }
    }
  }
  plans.resize(std::min(plans.size(), kPlans));
  return plans;
}

std::string name(const LayerPlan& plan) {
  if (plan.shards == 0) return "r = 0";
  return fmt::format("{}, overlap {}, {} shadowed",
                     comm::is_hierarchical(plan.algorithm) ? "2dh" : "linear", plan.overlap,
                     plan.shadowed);
}

/// Measures the cost model and all plans on this rank. Returns the plans and the model.
std::pair<std::vector<Plan>, comm::CostModel> measure(const Options& options,
                                                      const std::shared_ptr<comm::Group>& group) {
  at::set_num_threads(1);
  const int in_node = options.ranks >= 4 ? options.ranks / 2 : options.ranks;
  const bool apart = std::getenv("LOCAL_WORLD_SIZE") != nullptr &&
                     std::string(std::getenv("LOCAL_WORLD_SIZE")) == "1";
  const comm::CostModel costs = comm::calibrate(*group, apart ? 1 : in_node).model;
  const ExpertJob job = make_expert_job(options, group, 1, options.skew);
  std::vector<double> choices(static_cast<size_t>(options.experts), 0);
  for (const at::Tensor& of_rank : group->all_gather(routed(job, Drop::kNone).count))
    for (size_t e = 0; e < choices.size(); ++e)
      choices[e] += static_cast<double>(of_rank.const_data_ptr<int64_t>()[e]);
  const LayerLoad load{.ranks = options.ranks,
                       .experts = static_cast<int>(options.experts),
                       .tokens = options.tokens,
                       .width = options.width,
                       .hidden = options.hidden,
                       .top_k = static_cast<int>(options.k),
                       .row_bytes = 4.0 * static_cast<double>(options.width),
                       .other_row_bytes = 4.0 * static_cast<double>(options.width),
                       .choices_of = choices};
  std::vector<Plan> plans = plans_for(options.ranks);
  for (Plan& plan : plans) plan.predicted_s = simulate(costs, load, plan.plan).total_s();
  for (int64_t round = -1; round < options.rounds; ++round) {
    for (Plan& plan : plans) {
      const ExpertLayout layout{.shards = plan.plan.shards,
                                .overlap = plan.plan.overlap,
                                .hierarchical = comm::is_hierarchical(plan.plan.algorithm),
                                .shadowed = experts_by_load(choices, plan.plan.shadowed)};
      forget_gradients(job);
      group->barrier();
      const double begin = now_seconds();
      dropless(job, layout).backward(job.dy);
      const double seconds = largest(*group, now_seconds() - begin);
      if (round < 0) continue;  // the first warms up
      double& least = plan.half_s[static_cast<size_t>(round % 2)];
      least = std::min(least, seconds);
    }
  }
  return {plans, costs};
}

/// Prints the plans by predicted time. Returns the number of pairs in the wrong order.
int report(const Options& options, std::vector<Plan> plans, const comm::CostModel& costs) {
  std::ranges::sort(plans, {}, &Plan::predicted_s);
  std::cout << fmt::format("{} ranks, {} tokens each, {} experts of {} x {}, top {}, skew {}\n",
                           options.ranks, options.tokens, options.experts, options.width,
                           options.hidden, options.k, options.skew)
            << "costs: " << to_json(costs).dump() << "\n";
  auto list = nlohmann::ordered_json::array();
  for (const Plan& plan : plans) {
    std::cout << fmt::format("  {:32} predicted {:8.2f} ms  measured {:8.2f} ms\n", name(plan.plan),
                             1e3 * plan.predicted_s, 1e3 * plan.measured_s());
    list.push_back({{"plan", name(plan.plan)},
                    {"predicted_s", plan.predicted_s},
                    {"measured_s", plan.measured_s()},
                    {"half_s", plan.half_s}});
  }
  int pairs = 0, wrong = 0, repeated = 0, repeated_wrong = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    for (size_t j = i + 1; j < plans.size(); ++j) {
      const Plan &a = plans[i], &b = plans[j];
      const int found = order(a.measured_s(), b.measured_s());
      if (found == 0) continue;
      ++pairs;
      wrong += found > 0;
      const bool again =
          order(a.half_s[0], b.half_s[0]) == found && order(a.half_s[1], b.half_s[1]) == found;
      repeated += again;
      repeated_wrong += again && found > 0;
    }
  }
  const double fastest = std::ranges::min(plans, {}, &Plan::measured_s).measured_s();
  std::cout << fmt::format(
      "{} of {} pairs that differ by more than 5 % are in the wrong order.\n"
      "{} pairs differ so in both halves of the rounds; {} of them are in the wrong order.\n"
      "The plan predicted as fastest takes {:.3f} of the fastest's time.\n",
      wrong, pairs, repeated, repeated_wrong, plans[0].measured_s() / fastest);
  if (!options.out.empty())
    std::ofstream(options.out) << nlohmann::ordered_json({{"machine", machine_json()},
                                                          {"ranks", options.ranks},
                                                          {"tokens", options.tokens},
                                                          {"width", options.width},
                                                          {"hidden", options.hidden},
                                                          {"experts", options.experts},
                                                          {"skew", options.skew},
                                                          {"costs", to_json(costs)},
                                                          {"plans", list},
                                                          {"pairs", pairs},
                                                          {"wrong", wrong},
                                                          {"repeated_pairs", repeated},
                                                          {"repeated_wrong", repeated_wrong}})
                                      .dump(2)
                               << "\n";
  return wrong;
}

int run(Options options) {
  if (std::getenv("RANK") != nullptr) {
    const auto world = comm::world_from_environment();
    options.ranks = world->size();
    const auto [plans, costs] = measure(options, world);
    const int wrong = world->rank() == 0 ? report(options, plans, costs) : 0;
    world->barrier();
    return wrong == 0 ? 0 : 1;
  }
  std::vector<std::thread> threads;
  std::pair<std::vector<Plan>, comm::CostModel> found;
  std::string error;
  auto groups = comm::local_groups(options.ranks);
  threads.reserve(groups.size());
  for (auto& group : groups)
    threads.emplace_back([&, group] {
      try {
        auto made = measure(options, group);
        if (group->rank() == 0) found = std::move(made);
      } catch (const std::exception& failure) {
        if (group->rank() == 0) error = failure.what();
      }
    });
  for (auto& thread : threads) thread.join();
  if (!error.empty()) throw std::runtime_error(error);
  return report(options, found.first, found.second) == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Predicted and measured order of layouts of a layer of experts");
  app.add_option("--ranks", options.ranks, "ranks, threads of this process")
      ->check(CLI::Range(2, 16));
  app.add_option("--tokens", options.tokens, "tokens of a rank")->check(CLI::Range(16, 1 << 16));
  app.add_option("--width", options.width, "width of the model")->check(CLI::Range(8, 1 << 14));
  app.add_option("--hidden", options.hidden, "hidden elements of an expert")
      ->check(CLI::Range(8, 1 << 16));
  app.add_option("--experts", options.experts, "experts")->check(CLI::Range(8, 1024));
  app.add_option("--rounds", options.rounds, "rounds of each layout")->check(CLI::Range(1, 1000));
  app.add_option("--skew", options.skew, "skew of the load")->check(CLI::Range(0.0, 4.0));
  app.add_option("--out", options.out, "write the figures here (JSON)");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 2;
  }
}
