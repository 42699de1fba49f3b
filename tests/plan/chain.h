#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// A chain of `layers` layers of one unit of memory and time each, as Chen et al. count it.
inline Graph chain(int layers) {
  Graph graph;
  const auto add = [&](std::string name, std::string layer, std::vector<int> inputs,
                       TensorKind kind) {
    const auto made = static_cast<int>(graph.tensors.size());
    graph.tensors.push_back({.id = name, .bytes = 1, .kind = kind});
    graph.nodes.push_back({.name = std::move(name),
                           .layer = std::move(layer),
                           .inputs = std::move(inputs),
                           .outputs = {made},
                           .algorithms = {{"only", 1, 0}}});
  };
  for (int i = 0; i < layers; ++i)
    add(fmt::format("f{}", i), fmt::format("l{}", i),
        i == 0 ? std::vector<int>{} : std::vector{i - 1}, TensorKind::kActivation);
  for (int i = layers - 1; i >= 0; --i) {
    std::vector<int> inputs = {i};
    if (i + 1 < layers) inputs.push_back(static_cast<int>(graph.tensors.size()) - 1);
    add(fmt::format("b{}", i), fmt::format("l{}", i), std::move(inputs), TensorKind::kGrad);
  }
  graph.budget_bytes = int64_t{1} << 40;
  return graph;
}

}  // namespace dovetail::plan
