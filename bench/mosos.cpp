// The table of MO-SOS on a model of its GPU (plan/device_model.h): VGG19 at batch 144 and UNet at batch 120, at budgets
// of 0.8 to 0.4 of the peak with everything kept, by Checkmate and STR with algorithms chosen after planning, by all
// decisions at once, and by these and MXFP8:
//   ./dev bench mosos --out bench/results/mosos.json
//   ./dev bench mosos --write-graphs DIR     the steps as graph.json, for `dovetail plan`
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/mosos_step.h"
#include "dovetail/base/error.h"
#include "dovetail/plan/check.h"
#include "dovetail/plan/profile.h"

namespace dovetail::plan {
namespace {

struct Step {
  const char* model;
  int64_t batch, size;
};
constexpr Step kSteps[] = {{"vgg19", 144, 227}, {"unet", 120, 256}, {"vgg16", 144, 227}};

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

Graph graph_of_step(const Step& step) {
  const CapturedStep at = vision_step_at(step.model, step.batch, step.size);
  Graph graph = graph_on({}, at).graph;
  Plan fastest = keep_all(graph);
  double least_s = 0, most_s = 0;
  for (Action& action : fastest.actions)
    if (action.op == Op::kCompute) {
      const auto& algorithms = graph.nodes[action.node].algorithms;
      action.algorithm = static_cast<int>(algorithms.size()) - 1;
      least_s += algorithms.back().time_s;
      most_s += algorithms.front().time_s;
    }
  Graph unlimited = graph;
  unlimited.budget_bytes = std::numeric_limits<int64_t>::max();
  fmt::print(
      "{} batch {} at {} x {}: {} nodes, {} storages, {:.2f} s by the fastest algorithms, {:.2f} s by those without "
      "workspace\n",
      step.model, step.batch, step.size, step.size, graph.nodes.size(), graph.tensors.size(), least_s, most_s);
  fmt::print(
      "  peak {:.2f} GiB with everything kept to its last reader, of which ratios are; {:.2f} GiB with outputs held "
      "until their own backward; {:.2f} GiB with the fastest algorithms' workspaces\n",
      gib(graph.budget_bytes), gib(peak_with_outputs_held(graph)), gib(check(unlimited, fastest).peak_bytes));
  return graph;
}

int write_graphs(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (const Step& step : kSteps)
    std::ofstream(folder / (std::string(step.model) + ".json")) << to_json(graph_of_step(step)).dump(1) << '\n';
  return 0;
}

}  // namespace
}  // namespace dovetail::plan

int main(int argc, char** argv) {
  std::string folder;
  CLI::App app("Memory plans of VGG19 and UNet on a model of a GPU");
  app.add_option("--write-graphs", folder, "write the steps as graph.json into this folder, and nothing else");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!folder.empty()) return dovetail::plan::write_graphs(folder);
    return 0;
  } catch (const dovetail::UserError& error) {
    std::cerr << dovetail::describe_error(error) << '\n';
    return 2;
  }
}
