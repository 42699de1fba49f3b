#include "dovetail/plan/baselines/chen.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>

namespace dovetail::plan {
namespace {

/// Forward node of each backward node. Nodes are paired by layer: the last forward node with the
/// first backward node. A backward node whose layer has no forward node takes the pair of the next
/// backward node. It gets -1 if there is no next pair.
std::vector<int> mirrors(const StageGraph& graph, int forward) {
  std::map<std::string, std::vector<int>> of_layer;
  for (int n = 0; n < forward; ++n) of_layer[graph.graph().nodes[n].layer].push_back(n);
  std::vector<int> out(graph.nodes(), -1);
  std::map<std::string, size_t> met;
  for (int n = forward; n < graph.nodes(); ++n) {
    const std::string& layer = graph.graph().nodes[n].layer;
    const auto found = of_layer.find(layer);
    if (layer.empty() || found == of_layer.end()) continue;
    const size_t back = std::min(++met[layer], found->second.size());
    out[n] = found->second[found->second.size() - back];
  }
  int next = -1;
  for (int n = graph.nodes() - 1; n >= forward; --n) {
    if (out[n] < 0) out[n] = next;
    next = out[n];
  }
  return out;
}

}  // namespace

int forward_nodes(const Graph& graph) {
  const auto backward =
      std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const GraphNode& node) {
        return std::any_of(node.outputs.begin(), node.outputs.end(), [&](int t) {
          return graph.tensors[graph.root(t)].kind == TensorKind::kGrad;
        });
      });
  return static_cast<int>(backward - graph.nodes.begin());
}

std::vector<int> chen_candidates(const StageGraph& graph, Candidates which) {
  const int forward = forward_nodes(graph.graph());
  std::vector<int> all(forward);
  std::iota(all.begin(), all.end(), 0);
  if (which == Candidates::kAll) return all;
  // A node separates its ancestors from its descendants if no value bypasses it.
  std::vector<int> out;
  for (const int n : all) {
    const bool passed = std::any_of(graph.values().begin(), graph.values().end(), [&](int value) {
      const auto& readers = graph.readers(value);
      return graph.producer(value) < n &&
             std::any_of(
                 readers.begin(), readers.end(),
                 [&](int reader) { return reader > n && reader < forward; });
    });
    if (!passed) out.push_back(n);
  }
  return out;
}

std::vector<int> sqrt_checkpoints(const std::vector<int>& candidates) {
  const auto each = static_cast<size_t>(std::sqrt(static_cast<double>(candidates.size())));
  std::vector<int> out;
  for (size_t i = 0; i < candidates.size(); ++i)
    if ((i + 1) % each == 0) out.push_back(candidates[i]);
  return out;
}

std::vector<int> greedy_checkpoints(const StageGraph& graph, const std::vector<int>& candidates,
                                    int64_t segment_bytes) {
  std::vector<int> out;
  int64_t made = 0;
  const int forward = forward_nodes(graph.graph());
  for (int n = 0; n < forward; ++n) {
    for (const int value : graph.makes(n)) made += graph.graph().tensors[value].bytes;
    if (made <= segment_bytes || !std::binary_search(candidates.begin(), candidates.end(), n))
      continue;
    out.push_back(n);
    made = 0;
  }
  return out;
}

std::optional<Stages> stages_for(const StageGraph& graph, const std::vector<int>& checkpoints,
                                 const ChenOptions& options) {
  const int forward = forward_nodes(graph.graph()), nodes = graph.nodes();
  const std::vector<int> mirror = mirrors(graph, forward);
  auto keeps = no_stages(graph).keeps;
  const auto keep = [&](int t, int node) {
    for (const int value : graph.makes(node))
      if (node < t && (t <= graph.last_use(value) || !options.liveness)) keeps[t][value] = 1;
  };
  for (int t = 0; t < nodes; ++t) {
    for (const int value : graph.reads(t)) keeps[t][value] = 1;
    for (int n = forward; n < t; ++n)
      for (const int value : graph.makes(n))
        if (t <= graph.last_use(value)) keeps[t][value] = 1;
    for (const int checkpoint : checkpoints) keep(t, checkpoint);
  }
  std::vector<int> bounds = {0};
  bounds.insert(bounds.end(), checkpoints.begin(), checkpoints.end());
  bounds.push_back(forward + 1);
  for (size_t s = 0; s + 1 < bounds.size(); ++s) {
    const int first = bounds[s], end = bounds[s + 1];
    for (int t = 0; t < nodes; ++t) {
      const int at = t < forward ? t : mirror[t];
      const bool is_forward = t <= forward && t >= first && t <= end;
      const bool is_backward = t > forward && at >= first && at < end;
      if (is_forward || is_backward)
        for (int n = first; n < std::min({t, end, forward}); ++n) keep(t, n);
      if (options.hold_gradients && t >= forward && at >= first && at <= end)
        for (int n = forward; n < t; ++n)
          if (mirror[n] >= first && mirror[n] < end) keep(t, n);
    }
  }
  return runs_for(graph, std::move(keeps));
}

}  // namespace dovetail::plan
