#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// VGG19 at 224 x 224 as in Checkmate's experiment on the maximum batch. Source:
/// experiments/experiment_max_batchsize_*.py of its published code, with cost model "flops". Each
/// layer of Keras is a node; ReLUs are part of convolutions. The loss has a node, and each of these
/// has a backward node. A backward node reads its layer's output, the next layer's output and the
/// gradient of that output. It makes a gradient as large as its layer's output. Cost:
/// multiplications of convolutions and dense layers, 0 for others. Backward costs twice the
/// forward. All sizes and costs grow with the batch.
struct CheckmateVgg19 {
  static constexpr int64_t kParameters =
      143667240;  ///< four bytes each, and four bytes for each gradient
  static constexpr int64_t kMemory = 16'000'000'000;

  Graph graph;  ///< step of one image; a multiplication costs `seconds`
  std::vector<double> forward_cost;
  std::map<std::string, int64_t> parameters;  ///< weights and biases, by layer

  /// Returns the cost that the experiment allows: every node once, and one additional forward pass.
  double ceiling() const {
    double out = 0;
    for (const double cost : forward_cost) out += (1 + 1 + 2) * cost;
    return out;
  }
};

inline CheckmateVgg19 checkmate_vgg19(double seconds = 1e-9) {
  CheckmateVgg19 out;
  std::vector<int64_t> floats;
  std::vector<std::string> names;
  const auto layer = [&](std::string name, double cost, int64_t made) {
    names.push_back(std::move(name));
    out.forward_cost.push_back(cost * seconds);
    floats.push_back(made);
  };
  int64_t channels = 3, size = 224;
  const int depths[] = {2, 2, 4, 4, 4}, widths[] = {64, 128, 256, 512, 512};
  for (int block = 0; block < 5; ++block) {
    for (int i = 0; i < depths[block]; ++i) {
      const int64_t made = widths[block] * size * size;
      layer(fmt::format("block{}_conv{}", block + 1, i + 1),
            static_cast<double>(9 * channels * made), made);
      out.parameters[names.back()] = widths[block] * (9 * channels + 1);
      channels = widths[block];
    }
    size /= 2;
    layer(fmt::format("block{}_pool", block + 1), 0, channels * size * size);
  }
  int64_t width = channels * size * size;
  layer("flatten", 0, width);
  for (const int64_t next : {4096, 4096, 1000}) {
    layer(fmt::format("dense{}", names.size()), static_cast<double>(width * next), next);
    out.parameters[names.back()] = next * (width + 1);
    width = next;
  }
  const auto layers = static_cast<int>(names.size());
  Graph& graph = out.graph;
  const auto add = [&](const std::string& name, std::vector<int> inputs, int64_t bytes, double cost,
                       TensorKind kind) {
    const auto made = static_cast<int>(graph.tensors.size());
    graph.tensors.push_back({.id = name, .bytes = bytes, .kind = kind});
    graph.nodes.push_back({.name = name,
                           .layer = name.starts_with("grad ") ? name.substr(5) : name,
                           .inputs = std::move(inputs),
                           .outputs = {made},
                           .algorithms = {{"flops", cost, 0}}});
  };
  for (int i = 0; i < layers; ++i)
    add(names[i], i == 0 ? std::vector<int>{} : std::vector{i - 1}, 4 * floats[i],
        out.forward_cost[i], TensorKind::kActivation);
  add("loss", {layers - 1}, 4, 0, TensorKind::kGrad);
  for (int i = layers - 1; i >= 0; --i) {
    std::vector<int> inputs = {i, static_cast<int>(graph.tensors.size()) - 1};
    if (i + 1 < layers) inputs.push_back(i + 1);
    add("grad " + names[i], std::move(inputs), 4 * floats[i], 2 * out.forward_cost[i],
        TensorKind::kGrad);
  }
  graph.budget_bytes = int64_t{1} << 40;
  return out;
}

}  // namespace dovetail::plan
