#include "dovetail/cli/simulate/simulate_moe.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/table.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/comm/cost_model.h"
#include "dovetail/comm/payload.h"
#include "dovetail/moe/simulate.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

constexpr size_t kShown = 10;

Json to_json(const moe::LayerTime& time) {
  return {{"all_to_all", name(time.plan.algorithm)},
          {"overlap", time.plan.overlap},
          {"r", time.plan.shards},
          {"shadowed", time.plan.shadowed},
          {"forward_s", time.forward_s},
          {"backward_s", time.backward_s},
          {"compute_s", time.compute_s}};
}

std::vector<std::string> to_row(const moe::LayerTime& time) {
  const auto ms = [](double seconds) { return fmt::format("{:.3f}", seconds * 1e3); };
  const bool moves_rows = time.plan.shards > 0;
  return {moves_rows ? std::string(name(time.plan.algorithm)) : "none",
          moves_rows ? fmt::format("{}", time.plan.overlap) : "-",
          fmt::format("{}", time.plan.shards),
          fmt::format("{}", time.plan.shadowed),
          ms(time.forward_s),
          ms(time.backward_s),
          ms(time.total_s()),
          ms(time.compute_s)};
}

/// Returns a table of the fastest plans; for each algorithm also its fastest and its plain plan.
Rows table(const std::vector<moe::LayerTime>& times) {
  Rows rows = {{"all-to-all", "overlap", "r", "shadowed", "forward (ms)", "backward (ms)",
                "both (ms)", "computing (ms)"}};
  std::map<comm::AllToAllAlgorithm, bool> seen;
  for (size_t i = 0; i < times.size(); ++i) {
    const auto& plan = times[i].plan;
    const bool moves_rows = plan.shards > 0;
    const bool first = moves_rows && !std::exchange(seen[plan.algorithm], true);
    const bool plain = plan.overlap == 1 && plan.shards == 1 && plan.shadowed == 0;
    if (i < kShown || first || plain || !moves_rows) rows.push_back(to_row(times[i]));
  }
  return rows;
}

}  // namespace

void SimulateMoe::declare(Arguments& arguments) {
  arguments.option("--cost", "FILE", &cost_, "Cost model, as `dovetail bench comm --out` writes it")
      .is_required()
      .completes(Completion::kFile);
  arguments.option("--ranks", "N", &ranks_, "Number of ranks").is_required().range(1, 4096);
  arguments
      .option("--experts", "E", &experts_,
              "Number of experts. If smaller than the number of ranks, a divisor of it (as many as "
              "ranks)")
      .range(1, 1e5);
  arguments.option("--tokens", "T", &tokens_, "Tokens of each rank (4096)").range(1, 1e8);
  arguments.option("--width", "C", &width_, "Width of the model (1024)").range(1, 1e6);
  arguments.option("--hidden", "H", &hidden_, "Hidden width of an expert (4096)").range(1, 1e7);
  arguments.option("--top-k", "K", &top_k_, "Experts of each token (2)").range(1, 1024);
  arguments
      .option("--skew", "Z", &skew_,
              "Skew of the load: expert i in proportion to (i + 1)^-Z (0: even)")
      .range(0, 10);
  arguments
      .option(
          "--payload", "NAME", &payload_,
          "Format of rows to the experts: fp32, bf16, mxfp8 or fp8; other rows are bf16, or fp32 "
          "(bf16)")
      .one_of({"fp32", "bf16", "mxfp8", "fp8"});
  arguments
      .option("--row-for", "WHAT", &row_for_,
              "A token's rows. rank: one for each rank with its experts, as Dovetail sends. "
              "choice: one "
              "for each expert, as Tutel sends (rank)")
      .one_of({"rank", "choice"});
  arguments
      .option("--most-shadowed", "S", &most_shadowed_, "Maximum number of shadowed experts (8)")
      .range(0, 4096);
}

void SimulateMoe::run(const std::string& plot, bool json) const {
  const comm::CostModel model = comm::read_cost_model(cost_);
  const auto load = load_for(static_cast<int>(ranks_));
  const auto times = moe::simulate_all(model, load, static_cast<int>(most_shadowed_));
  if (!plot.empty()) write_file_atomically(plot, report::line_chart_svg(draw(model)));
  if (json) {
    Json plans = Json::array();
    for (const auto& time : times) plans.push_back(to_json(time));
    print_json(
        {{"simulated_from", model.source}, {"chosen", to_json(times.front())}, {"plans", plans}});
    return;
  }
  print(fmt::format("Simulated, not measured; the costs are: {}\n\n", model.source));
  print(format_table(table(times), Heading::kFirstRow));
  print(fmt::format("\nChosen of {} plans: all_to_all {}, overlap {}, r {}, {} shadowed.\n",
                    times.size(), comm::name(times.front().plan.algorithm),
                    times.front().plan.overlap, times.front().plan.shards,
                    times.front().plan.shadowed));
}

moe::LayerLoad SimulateMoe::load_for(int ranks) const {
  const comm::Payload there = comm::parse_payload(payload_);
  const comm::Payload back =
      there == comm::Payload::kFloat32 ? comm::Payload::kFloat32 : comm::Payload::kBFloat16;
  return {.ranks = ranks,
          .experts = static_cast<int>(experts_ > 0 ? experts_ : ranks_),
          .tokens = tokens_,
          .width = width_,
          .hidden = hidden_,
          .top_k = static_cast<int>(top_k_),
          .row_bytes = static_cast<double>(comm::row_bytes(there, width_, at::kFloat)),
          .other_row_bytes = static_cast<double>(comm::row_bytes(back, width_, at::kFloat)),
          .parameter_bytes = there == comm::Payload::kFloat32 ? 4.0 : 2.0,
          .skew = skew_,
          .once_per_rank = row_for_ == "rank"};
}

/// Draws the fastest time by number of ranks. The numbers double up to the requested one; numbers
/// that experts or nodes do not allow are left out.
report::LineChart SimulateMoe::draw(const comm::CostModel& model) const {
  report::LineChart chart{
      .title = "A layer of experts, forward and backward (simulated)",
      .subtitle = "costs: " + model.source,
      .x_label = "ranks",
      .y_label = "ms",
      .lines = {{"linear"}, {"2dh"}, {"flexible"}, {"2dh_flexible"}, {"data parallel"}}};
  for (int ranks = 2; ranks <= ranks_; ranks *= 2) {
    const auto load = load_for(ranks);
    const bool fits = (ranks <= load.experts || ranks % load.experts == 0) &&
                      (ranks <= model.ranks_per_node || ranks % model.ranks_per_node == 0);
    if (!fits) continue;
    std::map<size_t, double> fastest;
    for (const auto& time : moe::simulate_all(model, load, static_cast<int>(most_shadowed_)))
      fastest.try_emplace(
          time.plan.shards == 0 ? chart.lines.size() - 1 : static_cast<size_t>(time.plan.algorithm),
          time.total_s());
    for (const auto& [line, seconds] : fastest)
      chart.lines[line].points.emplace_back(ranks, seconds * 1e3);
  }
  user_check(!chart.lines.back().points.empty(),
             "--plot: no number of ranks from 2 to {} fits the experts and the nodes", ranks_);
  return chart;
}

}  // namespace dovetail::cli
