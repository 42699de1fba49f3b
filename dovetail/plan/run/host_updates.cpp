#include "dovetail/plan/run/host_updates.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/plan/model/packing.h"

namespace dovetail::plan {
namespace {

/// Number of nodes that use each storage.
std::vector<int> users_of(const Graph& graph) {
  std::vector<int> users(graph.tensors.size());
  for (const GraphNode& node : graph.nodes) {
    std::vector<int> used;
    for (const auto* list : {&node.inputs, &node.outputs, &node.mutates})
      for (const int t : *list) used.push_back(graph.root(t));
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    for (const int t : used) ++users[t];
  }
  return users;
}

}  // namespace

void add_host_updates(const CapturedStep& step, StepGraph& graph) {
  const std::vector<int> users = users_of(graph.graph);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    GraphNode& node = graph.graph.nodes[n];
    std::vector<int> state, all;
    for (const int t : node.mutates) {
      const GraphTensor& tensor = graph.graph.tensors[t];
      if (tensor.alias_of >= 0 || !may_start_on_host(tensor.kind) || tensor.bytes < kPagedBytes)
        continue;
      all.push_back(t);
      if (tensor.kind == TensorKind::kState && users[t] == 1) state.push_back(t);
    }
    const auto add = [&](std::string name, const std::vector<int>& on_host) {
      Algorithm algorithm = node.algorithms.front();
      algorithm.name = std::move(name);
      algorithm.on_host = on_host;
      node.algorithms.push_back(std::move(algorithm));
      const NodeRun captured = run_of(step, graph.nodes[n], 0);
      NodeVariant same{.operations = {captured.operations.begin(), captured.operations.end()},
                       .memory = captured.memory};
      graph.nodes[n].variants.push_back(std::move(same));
    };
    if (!state.empty()) add("state on the host", state);
    if (all.size() > state.size()) add("weights and state on the host", all);
  }
}

void share_times(Graph& graph, const Plan& plan) {
  for (const Action& action : plan.actions) {
    if (action.op != Op::kCompute) continue;
    auto& algorithms = graph.nodes[action.node].algorithms;
    const double time_s = algorithms[action.algorithm].time_s;
    if (std::any_of(algorithms.begin(), algorithms.end(),
                    [](const Algorithm& a) { return !a.on_host.empty(); }))
      for (Algorithm& algorithm : algorithms) algorithm.time_s = time_s;
  }
}

}  // namespace dovetail::plan
