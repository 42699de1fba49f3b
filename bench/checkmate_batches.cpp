// layer: plan
//
// Maximum batch of VGG19 within 16 GB, as in figure 5 of Checkmate (arXiv 1910.02653). The cost may
// exceed a step's FLOPs by at most one forward pass. Three comparisons: the published strategies
// with the published memory accounting, all strategies with one accounting, and the joint plan.
//
//   ./dev bench checkmate_batches --out bench/results/checkmate_batches.json
//
// Exit code 1 when a claim does not hold.
#include <fmt/format.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/checkmate_vgg19.h"
#include "bench/program.h"
#include "dovetail/base/error.h"
#include "dovetail/plan/baselines/baselines.h"
#include "dovetail/plan/baselines/checkmate.h"
#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kParameterBytes = 4 * CheckmateVgg19::kParameters;
constexpr int kPublished[] = {167, 197, 266, 289};
const Bandwidth kCopies = {.to_host = 12e9, .to_device = 11e9};

/// Beside `times` the bytes of the parameters.
int64_t batch_of(int64_t image_bytes, int times) {
  return (CheckmateVgg19::kMemory - times * kParameterBytes) / image_bytes;
}

/// Scales a step of one image to `batch` images.
Graph of_batch(Graph graph, int64_t batch) {
  for (GraphTensor& tensor : graph.tensors)
    if (!may_start_on_host(tensor.kind) && !tensor.id.starts_with("gradient of "))
      tensor.bytes *= batch;
  for (GraphNode& node : graph.nodes) node.algorithms[0].time_s *= static_cast<double>(batch);
  graph.budget_bytes = CheckmateVgg19::kMemory;
  return graph;
}

/// Returns the same step with parameters and their gradients as storages of the plan. A gradient
/// lives from backward of its layer to the update right after it.
Graph with_parameters(const CheckmateVgg19& vgg) {
  Graph out = vgg.graph;
  std::vector<GraphNode> nodes;
  const auto tensor = [&](std::string id, int64_t bytes, TensorKind kind) {
    out.tensors.push_back({.id = std::move(id), .bytes = bytes, .kind = kind});
    return static_cast<int>(out.tensors.size()) - 1;
  };
  std::map<std::string, int> parameter_of;
  for (GraphNode& node : out.nodes) {
    const bool backward = node.name.starts_with("grad ");
    const auto found = vgg.parameters.find(node.layer);
    if (found == vgg.parameters.end()) {
      nodes.push_back(std::move(node));
      continue;
    }
    if (!backward)
      parameter_of[node.layer] =
          tensor("parameters of " + node.layer, 4 * found->second, TensorKind::kParam);
    const int parameters = parameter_of.at(node.layer);
    node.inputs.push_back(parameters);
    const std::string layer = node.layer;
    if (!backward) {
      nodes.push_back(std::move(node));
      continue;
    }
    const int gradient = tensor("gradient of " + layer, 4 * found->second, TensorKind::kGrad);
    node.outputs.push_back(gradient);
    nodes.push_back(std::move(node));
    nodes.push_back({.name = "update " + layer,
                     .inputs = {gradient},
                     .mutates = {parameters},
                     .algorithms = {{"flops", 0, 0}}});
    out.final.push_back(parameters);
  }
  out.nodes = std::move(nodes);
  return out;
}

/// Maximum batch for which a search finds a plan within the allowed cost. `overhead` is the time
/// divided by the time of running each node once.
struct Largest {
  int64_t batch = 0;
  double overhead = 0;
};
Largest largest(const Graph& image, const CheckmateVgg19& vgg, const SolveOptions& options) {
  Largest out;
  int64_t low = 1, high = 4096;  // fits, does not
  while (high - low > 1) {
    const int64_t batch = (low + high) / 2;
    const Graph graph = of_batch(image, batch);
    (floor_of(graph, options).bytes <= graph.budget_bytes ? low : high) = batch;
  }
  for (int64_t batch = low; batch > 0; --batch) {
    const Graph graph = of_batch(image, batch);
    const double ceiling = vgg.ceiling() * static_cast<double>(batch);
    try {
      const Solution made = solve(graph, options);
      if (made.schedule.timeline.makespan_s > ceiling) continue;
      out = {batch, made.schedule.timeline.makespan_s / made.bound_s - 1};
      return out;
    } catch (const UserError&) {  // no plan of this batch
    }
  }
  return out;
}

struct Row {
  std::string name;
  int published = 0;
  int64_t as_published = 0, one_account = 0;
  double overhead = 0;  ///< time divided by the time of running each node once
};

/// `as_published`: batch with the published accounting. `one_account`: batch with parameters
/// counted twice and nothing kept past its last reader.
Row row_of(const CheckmateVgg19& vgg, const StageGraph& graph, const std::string& name,
           int published, const Stages& as_published, const Stages& stages) {
  const Timeline timeline =
      check(vgg.graph, plan_of(graph, stages, std::vector<int>(graph.nodes())));
  const double once_s = vgg.ceiling() * 3 / 4;
  return {name, published, batch_of(peak_held_bytes(graph, as_published), 4),
          batch_of(timeline.peak_bytes, 2), timeline.makespan_s / once_s - 1};
}

/// Every node once, everything kept to its last reader.
Stages all_kept(const StageGraph& graph) {
  Stages out = no_stages(graph);
  for (int t = 0; t < graph.nodes(); ++t)
    for (const int value : graph.values())
      out.keeps[t][value] = graph.producer(value) < t && t <= graph.last_use(value);
  return out;
}

/// Returns the checkpoint set with minimum memory within the allowed cost, among the sets that the
/// greedy strategy can choose.
Stages leanest_greedy(const CheckmateVgg19& vgg, const StageGraph& graph,
                      const ChenOptions& options) {
  constexpr int kSegments = 200;
  const auto candidates = chen_candidates(graph, Candidates::kAll);
  const std::vector<int> only(graph.nodes());
  const int64_t most = peak_held_bytes(graph, all_kept(graph));
  Stages best;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int step = 0; step < kSegments; ++step) {
    auto made =
        stages_for(graph, greedy_checkpoints(graph, candidates, most * step / kSegments), options);
    if (!made) continue;
    const int64_t held = peak_held_bytes(graph, *made);
    if (held >= least || check(vgg.graph, plan_of(graph, *made, only)).makespan_s > vgg.ceiling())
      continue;
    least = held;
    best = std::move(*made);
  }
  return best;
}

int run(const std::string& file, double time_limit_s) {
  // Two operations to a multiplication, at what the model of a GPU (plan/run/device_model.h) has
  // for most of them.
  const CheckmateVgg19 vgg = checkmate_vgg19(2 / (0.65 * 11.76e12));
  const StageGraph stages(vgg.graph);
  const auto all = chen_candidates(stages, Candidates::kAll);
  const auto chen = [&](const std::vector<int>& checkpoints, const ChenOptions& options) {
    return *stages_for(stages, checkpoints, options);
  };
  std::vector<Row> rows;
  rows.push_back(row_of(vgg, stages, "keep all", kPublished[0], chen(all, {.liveness = false}),
                        all_kept(stages)));
  rows.push_back(row_of(vgg, stages, "sqrt(n)", kPublished[1],
                        chen(sqrt_checkpoints(all), {.liveness = false, .hold_gradients = true}),
                        chen(sqrt_checkpoints(all), {})));
  rows.push_back(row_of(vgg, stages, "greedy", kPublished[2],
                        leanest_greedy(vgg, stages, {.liveness = false}),
                        leanest_greedy(vgg, stages, {})));
  // No plan of the graph takes less than its largest node.
  Graph tight = vgg.graph;
  tight.budget_bytes = floor_of(tight, {.offload = false, .compress = false}).bytes;
  const Baseline program = checkmate(tight, {.time_limit_s = time_limit_s});
  user_check(program.plan.has_value() && program.time_s <= vgg.ceiling(),
             "checkmate: no plan at the floor");
  rows.push_back({"program", kPublished[3], batch_of(tight.budget_bytes, 2),
                  batch_of(tight.budget_bytes, 2), program.time_s / (vgg.ceiling() * 3 / 4) - 1});
  Graph image = vgg.graph;
  image.bandwidth = kCopies;
  image.base_bytes = 2 * kParameterBytes;
  const SolveOptions options{.compress = false, .time_limit_s = time_limit_s / 4};
  const Largest joint = largest(image, vgg, options);
  rows.push_back({"joint", 0, 0, joint.batch, joint.overhead});
  Graph whole = with_parameters(vgg);
  whole.bandwidth = kCopies;
  const Largest moved = largest(whole, vgg, options);
  rows.push_back({"joint, parameters too", 0, 0, moved.batch, moved.overhead});
  fmt::print(
      "largest batch of VGG19, 224 x 224, 16 GB, at most one more forward "
      "pass\n{:24}{:>10}{:>14}{:>13}{:>16}\n",
      "", "published", "as published", "one account", "more time there");
  Json result = {
      {"benchmark", "checkmate_batches"}, {"rows", Json::array()}, {"claims", Json::array()}};
  bool holds = true;
  const auto claim = [&](const std::string& text, bool truth) {
    fmt::print("claim: {}: {}\n", text, truth ? "holds" : "DOES NOT HOLD");
    result["claims"].push_back({{"claim", text}, {"holds", truth}});
    holds = holds && truth;
  };
  for (const Row& row : rows) {
    fmt::print("{:24}{:>10}{:>14}{:>13}{:>15.1f}%\n", row.name,
               row.published > 0 ? std::to_string(row.published) : "",
               row.published > 0 ? std::to_string(row.as_published) : "", row.one_account,
               100 * row.overhead);
    result["rows"].push_back({{"strategy", row.name},
                              {"published", row.published},
                              {"as_published", row.as_published},
                              {"one_account", row.one_account},
                              {"more_time", row.overhead}});
  }
  for (const Row& row : rows)
    if (row.published > 0)
      claim(fmt::format("{}: {} as published", row.name, row.published),
            row.published == row.as_published);
  claim(
      fmt::format(
          "the joint plan trains the program's batch in less time: {:.1f} % more against {:.1f} %",
          100 * joint.overhead, 100 * rows[3].overhead),
      joint.batch >= rows[3].one_account && joint.overhead < rows[3].overhead);
  claim(fmt::format("with parameters among what it plans a larger batch: {}", moved.batch),
        moved.batch > rows[3].one_account);
  if (!file.empty()) std::ofstream(file) << result.dump(1) << '\n';
  return holds ? 0 : 1;
}

}  // namespace
}  // namespace dovetail::plan

int main(int argc, char** argv) {
  std::string out;
  double time_limit_s = 60;
  CLI::App app("Checkmate's largest batches of VGG19");
  app.add_option("--time-limit", time_limit_s, "seconds of solving the program");
  app.add_option("--out", out, "write the result as JSON");
  return dovetail::run_program(app, argc, argv,
                               [&] { return dovetail::plan::run(out, time_limit_s); });
}
