#pragma once

#include <fmt/format.h>

#include <random>

#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

using Random = std::mt19937_64;

inline int draw(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

/// Training step of a chain of `layers`: forward, backward, and an in-place update of each
/// parameter. Some activations are read by two forward operations. Backward operations read their
/// layer's input, its output or both. Some operations are random; some have a second, faster
/// algorithm with a workspace.
inline Graph random_step(Random& random, int layers) {
  Graph graph;
  graph.bandwidth = {.to_host = 10, .to_device = 8, .duplex = draw(random, 0, 3) > 0};
  graph.codecs = {{"exact", 0.5, 50, 40, 0}, {"mxfp8", 0.25, 100, 90, 0.1}};
  const auto add = [&](std::string id, TensorKind kind) {
    graph.tensors.push_back({.id = std::move(id),
                             .bytes = 8 * draw(random, 1, 6),
                             .kind = kind,
                             .lossy_ok = draw(random, 0, 1) == 1});
    return static_cast<int>(graph.tensors.size()) - 1;
  };
  const auto algorithms = [&] {
    const double time = 0.5 * draw(random, 1, 8);
    std::vector<Algorithm> out = {{"slow", time, 0}};
    if (draw(random, 0, 2) == 0) out.push_back({"fast", time / 2, 8 * draw(random, 1, 4)});
    return out;
  };
  std::vector<int> made = {add("x", TensorKind::kInput)}, parameters;
  for (int i = 0; i < layers; ++i) {
    GraphNode node{.name = fmt::format("f{}", i), .inputs = {made.back()}};
    parameters.push_back(draw(random, 0, 2) > 0 ? add(fmt::format("w{}", i), TensorKind::kParam)
                                                : -1);
    if (parameters.back() >= 0) node.inputs.push_back(parameters.back());
    if (i >= 2 && draw(random, 0, 3) == 0) node.inputs.push_back(made[made.size() - 2]);
    made.push_back(add(fmt::format("a{}", i), TensorKind::kActivation));
    node.outputs = {made.back()};
    node.random = draw(random, 0, 4) == 0;
    node.recomputable = !node.random || draw(random, 0, 1) == 1;
    node.algorithms = algorithms();
    graph.nodes.push_back(std::move(node));
  }
  int gradient = -1;
  for (int i = layers - 1; i >= 0; --i) {
    GraphNode node{.name = fmt::format("b{}", i), .algorithms = algorithms()};
    if (gradient >= 0) node.inputs.push_back(gradient);
    const int what = draw(random, 0, 2);
    if (what != 0) node.inputs.push_back(made[i]);
    if (what != 1) node.inputs.push_back(made[i + 1]);
    gradient = add(fmt::format("g{}", i), TensorKind::kGrad);
    node.outputs = {gradient};
    int of_parameter = -1;
    if (parameters[i] >= 0) {
      of_parameter = add(fmt::format("gw{}", i), TensorKind::kGrad);
      node.outputs.push_back(of_parameter);
    }
    graph.nodes.push_back(std::move(node));
    if (of_parameter < 0) continue;
    graph.nodes.push_back({.name = fmt::format("u{}", i),
                           .inputs = {of_parameter},
                           .mutates = {parameters[i]},
                           .algorithms = {{"only", 0.25, 0}}});
    graph.final.push_back(parameters[i]);
  }
  graph.budget_bytes = int64_t{1} << 40;
  return graph;
}

/// Restricts some tensors to one codec or none. Some nodes then refuse packed inputs.
inline void restrict_codecs(Random& random, Graph& graph) {
  for (GraphTensor& tensor : graph.tensors) {
    const int what = draw(random, -1, 3);  // the first of two codecs, the second, or none
    if (what >= 0 && what < 3) tensor.codecs = what < 2 ? std::vector{what} : std::vector<int>{};
  }
  for (GraphNode& node : graph.nodes) node.reads_unpacked = draw(random, 0, 2) == 0;
}

/// Gives some updates of a random step a momentum, which they change together with their parameter.
/// Other updates leave their parameter unchanged.
inline void add_state(Random& random, Graph& graph) {
  for (GraphNode& node : graph.nodes) {
    if (node.mutates.empty()) continue;
    const int what = draw(random, 0, 3);
    if (what == 0) {
      node.inputs.push_back(node.mutates[0]);
      node.mutates.clear();
    } else if (what < 3) {
      node.mutates.push_back(static_cast<int>(graph.tensors.size()));
      graph.final.push_back(node.mutates.back());
      graph.tensors.push_back({.id = "m" + node.name.substr(1),
                               .bytes = 8 * draw(random, 1, 6),
                               .kind = TensorKind::kState});
    }
  }
}

/// Gives some updates of a random step an algorithm that finds the momentum, the parameter or both
/// on the host.
inline void let_updates_run_on_host(Random& random, Graph& graph) {
  for (GraphNode& node : graph.nodes) {
    if (node.mutates.empty() || draw(random, 0, 3) == 0) continue;
    std::vector<int> some = node.mutates;
    if (draw(random, 0, 1) == 0) some.erase(some.begin(), some.end() - 1);
    node.algorithms.push_back({"host", node.algorithms[0].time_s * draw(random, 1, 3), 0, some});
  }
}

}  // namespace dovetail::plan
