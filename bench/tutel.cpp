// Measures each technique for mixtures of experts: a layer of experts over ranks, one technique
// after another.
//
// usage: ./dev bench tutel [--ranks N] [--tokens T] [--width C] [--hidden H] [--experts E]
//                          [--rounds N] [--cluster FILE] [--out FILE] [--plot FILE]
//
// Forward and backward, routing included. Ranks are threads of this process with one compute thread
// each, so they share the machine's cores. So overlap can hide only time in which cores are free.
// Sides take turns within a round, and the best round of each side counts. Seconds belong to the
// slowest rank. Bytes are the maximum over ranks of tensor memory in a step beyond parameters. In
// two loads, even and skewed:
//
// - `einsum`: one-hot (T, E, C) masks for encode and decode (GShard), with C for the largest load.
//   Uniform all-to-all, one batched product.
// - `sparse`: as `einsum`, but rows move by index (Tutel's fast encode and decode):
//   model.moe.pad_to_capacity.
// - `dropless`: rows without padding to C; grouped products read them in place (MegaBlocks).
// - `overlap n`: n chunks, whose exchange overlaps with another chunk's experts (Tutel's
//   pipelining).
// - `2dh`: all-to-all in two stages, on nodes of half the ranks each (Tutel).
// - `shadow n`: the n most loaded experts are sent to the tokens (FasterMoE).
// - `r = 0, ...`: fewer experts than ranks, cut in two (Tutel's r). `adaptive` is the best r of
//   each load.
//
// Simulated from a file of costs: linear against 2DH on 64 to 1024 ranks, and the best r and
// overlap against r = 1 without overlap. Claims: `sparse` is faster than `einsum` and uses less
// memory. `dropless` is no slower than `sparse` and uses less memory under the skewed load. Exit
// code 1 when one does not hold.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/expert_job.h"
#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/moe/simulate.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/ops/functions.h"
#include "tests/models/allocation_meter.h"

namespace {

using namespace dovetail;
using namespace dovetail::moe;
using namespace dovetail::bench;

struct Options : LayerSizes {
  int64_t rounds = 7;
  std::string cluster = "configs/clusters/a100_8x_hdr.json", out, plot;
};

/// Inputs of a side on its rank.
struct Job : ExpertJob {
  at::Tensor up, down;  // weights as (E / W, H, C) and (E / W, C, H)
};

Job make_job(const Options& options, const std::shared_ptr<comm::Group>& group, int64_t experts,
             int cut, double skew) {
  LayerSizes sizes = options;
  sizes.experts = experts;
  Job job{make_expert_job(sizes, group, cut, skew)};
  const auto seed = static_cast<uint64_t>(group->rank());
  const int64_t count = std::ssize(job.weights.up), hidden = options.hidden / cut;
  job.up = random({count, hidden, options.width}, 10 + seed).mul_(0.05).requires_grad_();
  job.down = random({count, options.width, hidden}, 20 + seed).mul_(0.05).requires_grad_();
  return job;
}

/// Routes with the capacity that the largest load of any expert on any rank needs. All ranks agree
/// on it.
Routing routed_with_capacity(const Job& job) {
  at::Tensor most = routed(job, Drop::kNone).count.max().view({1});
  int64_t capacity = 0;
  for (const at::Tensor& of_rank : job.group->all_gather(most))
    capacity = std::max(capacity, of_rank.item<int64_t>());
  return routed(job, Drop::kPosition, capacity);
}

/// Experts of (E, C, M), which travel as (E / W, W C, M).
at::Tensor batched_experts(const Job& job, const at::Tensor& ecm) {
  const at::Tensor rows = comm::all_to_all_flexible(ecm, job.group, 0, 1);
  const at::Tensor made =
      at::bmm(dovetail::ops::gelu(at::bmm(rows, job.up.transpose(1, 2))), job.down.transpose(1, 2));
  return comm::all_to_all_flexible(made, job.group, 1, 0);
}

at::Tensor by_einsum(const Job& job) {
  const Routing routing = routed_with_capacity(job);
  const int64_t tokens = job.x.size(0), experts = job.logits.size(1);
  const at::Tensor at = routing.expert.to(at::kLong) * routing.capacity + routing.slot;
  const at::Tensor combine = at::zeros({tokens, experts * routing.capacity})
                                 .scatter(1, at, routing.weight)
                                 .view({tokens, experts, routing.capacity});
  const at::Tensor dispatch = combine.detach().ne(0).to(at::kFloat);
  const at::Tensor made = batched_experts(job, at::einsum("tec,tm->ecm", {dispatch, job.x}));
  return at::einsum("tec,ecm->tm", {combine, made});
}

at::Tensor by_capacity(const Job& job) {
  const Routing routing = routed_with_capacity(job);
  return parallel_feed_forward(job.x, routing.weight, routing.expert, routing.slot,
                               {.weights = job.weights}, job.ranks, {}, routing.capacity);
}

struct Side {
  std::string name;
  std::function<at::Tensor(const Job&)> forward;
  double seconds = std::numeric_limits<double>::infinity();
  int64_t bytes = std::numeric_limits<int64_t>::max();
};

void step(const Job& job, const Side& side) {
  forget_gradients(job);
  for (const at::Tensor& tensor : {job.up, job.down}) tensor.mutable_grad().reset();
  side.forward(job).backward(job.dy);
}

/// Every side on every rank, in turns.
void measure(const Options& options, std::vector<Side>& sides, int64_t experts, int cut,
             double skew) {
  auto groups = comm::local_groups(options.ranks);
  std::vector<std::thread> threads;
  threads.reserve(groups.size());
  std::mutex mutex;
  std::string error;
  for (auto& group : groups)
    threads.emplace_back([&, group] {
      try {
        at::set_num_threads(1);
        const Job job = make_job(options, group, experts, cut, skew);
        for (int64_t round = -1; round < options.rounds; ++round) {
          for (Side& side : sides) {
            testing::AllocationMeter meter;
            group->barrier();
            const double begin = now_seconds();
            step(job, side);
            const double seconds = largest(*group, now_seconds() - begin);
            const double bytes = largest(*group, static_cast<double>(meter.peak()));
            if (group->rank() != 0 || round < 0) continue;  // the first warms up
            side.seconds = std::min(side.seconds, seconds);
            side.bytes = std::min(side.bytes, static_cast<int64_t>(bytes));
          }
        }
      } catch (const std::exception& failure) {
        const std::lock_guard lock(mutex);
        if (error.empty()) error = failure.what();
      }
    });
  for (auto& thread : threads) thread.join();
  if (!error.empty()) throw std::runtime_error(error);
}

Side by_plan(const std::string& name, const ExpertLayout& plan) {
  return {.name = name, .forward = [plan](const Job& job) { return dropless(job, plan); }};
}

nlohmann::ordered_json report(const std::vector<Side>& sides, const std::string& title) {
  std::cout << "\n" << title << "\n";
  auto list = nlohmann::ordered_json::array();
  for (const Side& side : sides) {
    std::cout << fmt::format("  {:12} {:8.1f} ms  {:5.2f} x   {:8.1f} MB  {:5.2f} x\n", side.name,
                             1e3 * side.seconds, side.seconds / sides[0].seconds,
                             1e-6 * static_cast<double>(side.bytes),
                             static_cast<double>(side.bytes) / static_cast<double>(sides[0].bytes));
    list.push_back({{"name", side.name}, {"seconds", side.seconds}, {"bytes", side.bytes}});
  }
  return {{"title", title}, {"sides", list}};
}

nlohmann::ordered_json ladder(const Options& options, double skew, const std::string& title,
                              bool& holds) {
  std::vector<Side> sides = {{.name = "einsum", .forward = by_einsum},
                             {.name = "sparse", .forward = by_capacity},
                             by_plan("dropless", {}),
                             by_plan("overlap 2", {.overlap = 2}),
                             by_plan("overlap 4", {.overlap = 4})};
  if (options.ranks % 2 == 0 && options.ranks > 2)
    sides.push_back(by_plan("2dh", {.hierarchical = true}));
  sides.push_back(by_plan("shadow 1", {.shadowed = {0}}));
  sides.push_back(by_plan("shadow 2", {.shadowed = {0, 1}}));
  measure(options, sides, options.experts, 1, skew);
  holds &= sides[1].seconds < sides[0].seconds && sides[1].bytes < sides[0].bytes;
  holds &= sides[2].seconds <= sides[1].seconds && (skew == 0 || sides[2].bytes < sides[1].bytes);
  return report(sides, title);
}

nlohmann::ordered_json adaptive(const Options& options, double skew, const std::string& title) {
  std::vector<Side> sides = {by_plan("r = 1", {.shards = 1}), by_plan("r = 2", {.shards = 2}),
                             by_plan("r = 0", {.shards = 0})};
  measure(options, sides, options.ranks / 2, 2, skew);
  return report(sides, title);
}

std::string bars(const nlohmann::ordered_json& sides, const char* key, double scale,
                 const char* unit, int x, int y) {
  double most = 0;
  for (const auto& side : sides) most = std::max(most, side[key].get<double>());
  std::string svg;
  for (const auto& side : sides) {
    const double value = side[key].get<double>();
    svg += fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><rect x=\"{}\" y=\"{}\" "
        "width=\"{:.1f}\" height=\"12\"/><text x=\"{:.1f}\" y=\"{}\">{:.1f} {}</text>\n",
        x + 64, y + 10, side["name"].get<std::string>(), x + 70, y, 200 * value / most,
        x + 74 + 200 * value / most, y + 10, scale * value, unit);
    y += 17;
  }
  return svg;
}

/// All that was measured in one picture: time on the left, memory on the right.
std::string picture(const nlohmann::ordered_json& parts) {
  std::string body;
  int y = 24;
  for (const auto& part : parts) {
    body += fmt::format("<text class=\"title\" x=\"10\" y=\"{}\">{}</text>\n", y,
                        part["title"].get<std::string>());
    body += bars(part["sides"], "seconds", 1e3, "ms", 0, y + 10) +
            bars(part["sides"], "bytes", 1e-6, "MB", 360, y + 10);
    y += 40 + 17 * static_cast<int>(part["sides"].size());
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 {0}\"><style>text {{ font: 11px "
      "system-ui, sans-serif; fill: #333 }} .title {{ font-weight: 600 }} rect {{ fill: #2f5fd0 "
      "}}</style><rect width=\"720\" height=\"{0}\" style=\"fill:#fff\"/>\n{1}</svg>\n",
      y - 10, body);
}

nlohmann::ordered_json simulated(const Options& options) {
  const comm::CostModel costs = comm::read_cost_model(options.cluster);
  std::cout << "\nsimulated, from: " << costs.source << "\n";
  auto list = nlohmann::ordered_json::array();
  for (const int ranks : {64, 256, 1024}) {
    const LayerLoad load{.ranks = ranks,
                         .experts = ranks,
                         .tokens = 4096,
                         .width = 2048,
                         .hidden = 2048,
                         .top_k = 2,
                         .row_bytes = 4096,
                         .other_row_bytes = 4096,
                         .parameter_bytes = 2,
                         .once_per_rank = false};
    const double
        linear = simulate(costs, load, {.algorithm = comm::AllToAllAlgorithm::kFlexible}).total_s(),
        two = simulate(costs, load, {.algorithm = comm::AllToAllAlgorithm::kHierarchicalFlexible})
                  .total_s();
    LayerLoad few = load;
    few.experts = ranks / 8;
    const double fixed =
        simulate(costs, few, {.algorithm = comm::AllToAllAlgorithm::kHierarchicalFlexible})
            .total_s();
    const LayerTime best = simulate_all(costs, few).front();
    std::cout << fmt::format(
        "  {:5} ranks  linear {:7.2f} ms  2dh {:7.2f} ms; {} experts: r = 1 without overlap "
        "{:7.2f} ms, best {:7.2f} ms (r = {}, overlap {})\n",
        ranks, 1e3 * linear, 1e3 * two, few.experts, 1e3 * fixed, 1e3 * best.total_s(),
        best.plan.shards, best.plan.overlap);
    list.push_back({{"ranks", ranks},
                    {"linear_s", linear},
                    {"2dh_s", two},
                    {"r_1_s", fixed},
                    {"best_s", best.total_s()},
                    {"best_r", best.plan.shards},
                    {"best_overlap", best.plan.overlap}});
  }
  return {{"source", costs.source}, {"layers", list}};
}

int run(const Options& options) {
  bool holds = true;
  const std::string shape =
      fmt::format("{} ranks, {} tokens each, {} experts of {} x {}, top {}", options.ranks,
                  options.tokens, options.experts, options.width, options.hidden, options.k);
  auto parts = nlohmann::ordered_json::array();
  parts.push_back(ladder(options, 0, shape + ", even load", holds));
  parts.push_back(ladder(options, 0.7, shape + ", skewed load", holds));
  const std::string few =
      fmt::format("{} ranks, {} experts cut in two", options.ranks, options.ranks / 2);
  parts.push_back(adaptive(options, 0, few + ", even load"));
  Options small = options;
  small.tokens /= 8;
  parts.push_back(adaptive(small, 0, few + ", an eighth of the tokens"));
  const nlohmann::ordered_json clusters = simulated(options);
  std::cout << (holds ? "\nclaims hold\n" : "\na claim does NOT hold\n");
  if (!options.out.empty())
    std::ofstream(options.out) << nlohmann::ordered_json({{"machine", machine_json()},
                                                          {"measured", parts},
                                                          {"simulated", clusters},
                                                          {"holds", holds}})
                                      .dump(2)
                               << "\n";
  if (!options.plot.empty()) std::ofstream(options.plot) << picture(parts);
  return holds ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Benchmark of techniques for a mixture of experts over ranks");
  app.add_option("--ranks", options.ranks, "ranks, threads of this process")
      ->check(CLI::Range(2, 16));
  app.add_option("--tokens", options.tokens, "tokens of a rank")->check(CLI::Range(16, 1 << 16));
  app.add_option("--width", options.width, "width of the model")->check(CLI::Range(8, 1 << 14));
  app.add_option("--hidden", options.hidden, "hidden elements of an expert")
      ->check(CLI::Range(8, 1 << 16));
  app.add_option("--experts", options.experts, "experts, a multiple of the ranks")
      ->check(CLI::Range(2, 1024));
  app.add_option("--rounds", options.rounds, "rounds of each side")->check(CLI::Range(1, 1000));
  app.add_option("--cluster", options.cluster, "costs to simulate with");
  app.add_option("--out", options.out, "write the figures here (JSON)");
  app.add_option("--plot", options.plot, "draw what was measured (SVG)");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 2;
  }
}
