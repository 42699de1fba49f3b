#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/table.h"
#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/comm/cost_model.h"
#include "dovetail/moe/simulate.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

/// Returns the number of ranks on this machine, which is one node.
int ranks_per_node(const comm::Group& world) {
  const char* local = std::getenv("LOCAL_WORLD_SIZE");
  return local == nullptr ? world.size() : std::atoi(local);
}

struct Comparison {
  std::string what;
  double measured_s, predicted_s;
};

Json to_json(const std::vector<Comparison>& comparisons) {
  Json list = Json::array();
  for (const auto& c : comparisons)
    list.push_back(
        {{"what", c.what}, {"measured_s", c.measured_s}, {"predicted_s", c.predicted_s}});
  return list;
}

Rows to_rows(const std::vector<Comparison>& comparisons) {
  Rows rows = {{"", "measured (ms)", "predicted (ms)", "predicted / measured"}};
  for (const auto& c : comparisons)
    rows.push_back({c.what, fmt::format("{:.3f}", c.measured_s * 1e3),
                    fmt::format("{:.3f}", c.predicted_s * 1e3),
                    fmt::format("{:.2f}", c.predicted_s / c.measured_s)});
  return rows;
}

class BenchCommand : public Command {
 public:
  std::string name() const override { return "bench"; }
  std::string summary() const override {
    return "Measure network and processors of the ranks, for `dovetail simulate`";
  }
  std::string example() const override { return "dovetail launch -n 2 bench comm --out cost.json"; }

  void declare(Arguments& arguments) override {
    arguments.positional("what", &what_, "Measurement: comm").is_required().one_of({"comm"});
    arguments.option("--out", "FILE", &out_, "Write the cost model here (JSON)")
        .completes(Completion::kFile);
    arguments
        .option("--tokens", "N", &tokens_,
                "Tokens of each rank in the measured layer of experts (2048)")
        .range(8, 1e6);
    arguments.option("--width", "C", &width_, "Width of the layer of experts (256)").range(1, 1e5);
    arguments.option("--hidden", "H", &hidden_, "Hidden width of the layer's experts (512)")
        .range(1, 1e6);
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void run() override {
    const auto world = comm::world_from_environment();
    user_check(world->size() > 1,
               "bench comm measures several ranks, but this job has one; run: {}", example());
    const auto calibration = comm::calibrate(*world, ranks_per_node(*world));
    const auto exchanges = compare_exchanges(calibration);
    const auto layers = compare_layers(world, calibration.model);
    if (world->rank() == 0 && !out_.empty())
      write_file_atomically(out_, comm::to_json(calibration.model).dump(2) + "\n");
    if (json_) {
      print_json({{"model", comm::to_json(calibration.model)},
                  {"all_to_all", to_json(exchanges)},
                  {"layer_forward", to_json(layers)}});
      return;
    }
    print_model(calibration.model);
    print("\nAll-to-all, sizes that were not fitted:\n\n" +
          format_table(to_rows(exchanges), Heading::kFirstRow));
    print(fmt::format("\nA layer of experts forward ({} tokens a rank, top 2, {} x {}):\n\n",
                      tokens_, width_, hidden_) +
          format_table(to_rows(layers), Heading::kFirstRow));
  }

 private:
  static std::vector<Comparison> compare_exchanges(const comm::Calibration& calibration) {
    std::vector<Comparison> list;
    const int m = calibration.model.ranks_per_node;
    for (const auto& sample : calibration.held_out) {
      const double bytes = sample.bytes / sample.messages;
      list.push_back({fmt::format("{} for each of {} ranks", format_bytes(bytes), m),
                      sample.seconds,
                      comm::all_to_all_seconds(calibration.model, m, bytes,
                                               comm::AllToAllAlgorithm::kLinear)});
    }
    return list;
  }

  std::vector<Comparison> compare_layers(const std::shared_ptr<comm::Group>& world,
                                         const comm::CostModel& model) const {
    const double row_bytes = 4.0 * static_cast<double>(width_);
    const moe::LayerLoad load{.ranks = world->size(),
                              .experts = world->size(),
                              .tokens = tokens_ - tokens_ % (4 * world->size()),
                              .width = width_,
                              .hidden = hidden_,
                              .top_k = 2,
                              .row_bytes = row_bytes,
                              .other_row_bytes = row_bytes,
                              .once_per_rank = false};
    std::vector<Comparison> list;
    for (const int overlap : {1, 2, 4})
      list.push_back(
          {fmt::format("overlap {}", overlap), moe::measure_forward(world, load, overlap, 9),
           moe::simulate(model, load,
                         {.algorithm = comm::AllToAllAlgorithm::kFlexible, .overlap = overlap})
               .forward_s});
    return list;
  }

  static void print_model(const comm::CostModel& model) {
    const auto link = [](const comm::Link& link) {
      return fmt::format("{:.1f} us a message, {:.3f} GB/s a rank", link.latency_s * 1e6,
                         link.bytes_per_s / 1e9);
    };
    print(format_table(
        {{"source", model.source},
         {"ranks of a node", fmt::format("{}", model.ranks_per_node)},
         {"inside a node", link(model.inside)},
         {"between nodes", model.between ? link(*model.between) : "not measured: one node"},
         {"stride copy", fmt::format("{:.2f} GB/s a rank", model.copy_bytes_per_s / 1e9)},
         {"matrix product", fmt::format("{:.1f} us a call, {:.1f} GFLOP/s a rank (fp32)",
                                        model.call_s * 1e6, model.flops / 1e9)}}));
  }

  std::string what_, out_;
  int64_t tokens_ = 2048, width_ = 256, hidden_ = 512;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_bench_command() { return std::make_unique<BenchCommand>(); }

}  // namespace dovetail::cli
