#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/gpu.h"
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

/// Returns the device of this rank by its name. Ranks of a machine take its GPUs in turns. All
/// ranks call this together.
at::Device device_of(const std::string& name, comm::Group& world) {
  if (name == "cpu") return at::kCPU;
  const std::string reason = load_gpu();
  if (!reason.empty())
    throw UserError("bench comm: --device cuda, but " + reason,
                    "use --device cpu; `dovetail doctor` says what is missing");
  const int index = comm::neighbours_of(world).rank % count_gpus();
  use_gpu(index);
  return {at::kCUDA, static_cast<at::DeviceIndex>(index)};
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

/// Returns the share of a layer's exchanges that each overlap after the first hides. It is the time
/// saved, divided by the time of the exchanges.
std::vector<double> hidden_shares(const std::vector<Comparison>& layers, double exchanges_s) {
  std::vector<double> shares;
  for (size_t i = 1; i < layers.size(); ++i)
    shares.push_back((layers[0].measured_s - layers[i].measured_s) / exchanges_s);
  return shares;
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
    arguments.option("--device", "NAME", &device_, "Device of rows and products (cpu)")
        .one_of({"cpu", "cuda"});
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void run() override {
    const auto world = comm::world_from_environment();
    user_check(world->size() > 1,
               "bench comm measures several ranks, but this job has one; run: {}", example());
    const at::Device device = device_of(device_, *world);
    const auto calibration = comm::calibrate(*world, ranks_per_node(*world), device);
    const auto exchanges = compare_exchanges(calibration);
    const moe::LayerLoad load = layer_load(world->size());
    const auto layers = compare_layers(world, calibration.model, load, device);
    const std::vector<double> hidden =
        hidden_shares(layers, exchanges_seconds(*world, load, device));
    if (world->rank() == 0 && !out_.empty())
      write_file_atomically(out_, comm::to_json(calibration.model).dump(2) + "\n");
    if (json_) {
      print_json({{"device", device_},
                  {"model", comm::to_json(calibration.model)},
                  {"all_to_all", to_json(exchanges)},
                  {"layer_forward", to_json(layers)},
                  {"layer_hidden_share", hidden}});
      return;
    }
    print_model(calibration.model);
    print("\nAll-to-all, sizes that were not fitted:\n\n" +
          format_table(to_rows(exchanges), Heading::kFirstRow));
    print(fmt::format("\nA layer of experts forward ({} tokens a rank, top 2, {} x {}):\n\n",
                      tokens_, width_, hidden_) +
          format_table(to_rows(layers), Heading::kFirstRow));
    print(
        fmt::format("\nShare of the layer's exchanges that overlap hides: {:.2f} with 2 chunks, "
                    "{:.2f} with 4\n",
                    hidden[0], hidden[1]));
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

  moe::LayerLoad layer_load(int ranks) const {
    const double row_bytes = 4.0 * static_cast<double>(width_);
    return {.ranks = ranks,
            .experts = ranks,
            .tokens = tokens_ - tokens_ % (4 * ranks),
            .width = width_,
            .hidden = hidden_,
            .top_k = 2,
            .row_bytes = row_bytes,
            .other_row_bytes = row_bytes,
            .once_per_rank = false};
  }

  /// Returns the seconds of dispatch and combine of a layer without overlap.
  static double exchanges_seconds(comm::Group& world, const moe::LayerLoad& load,
                                  at::Device device) {
    const int64_t bytes =
        load.tokens * load.top_k / load.ranks * static_cast<int64_t>(load.row_bytes);
    return 2 * comm::measure_all_to_all(world, bytes, kRepeats, device);
  }

  static std::vector<Comparison> compare_layers(const std::shared_ptr<comm::Group>& world,
                                                const comm::CostModel& model,
                                                const moe::LayerLoad& load, at::Device device) {
    std::vector<Comparison> list;
    for (const int overlap : {1, 2, 4})
      list.push_back(
          {fmt::format("overlap {}", overlap),
           moe::measure_forward(world, load, overlap, kRepeats, device),
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
                                        model.call_s * 1e6, model.flops / 1e9)},
         {"exchange hidden by products", fmt::format("{:.2f}", model.overlap_share)}}));
  }

  static constexpr int kRepeats = 9;
  std::string what_, out_, device_ = "cpu";
  int64_t tokens_ = 2048, width_ = 256, hidden_ = 512;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_bench_command() { return std::make_unique<BenchCommand>(); }

}  // namespace dovetail::cli
