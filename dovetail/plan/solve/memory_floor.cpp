#include "dovetail/plan/solve/memory_floor.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/run/profile.h"

namespace dovetail::plan {
namespace {

int64_t on_line(const Sampled& a, int64_t at_a, const Sampled& b, int64_t at_b, int64_t samples) {
  const double slope =
      static_cast<double>(at_b - at_a) / static_cast<double>(b.samples - a.samples);
  return std::max<int64_t>(at_b + std::llround(slope * static_cast<double>(samples - b.samples)),
                           0);
}

/// Turns "aten::convolution_backward:7" into "convolution backward".
std::string words(const std::string& node) {
  const size_t scope = node.find("::"), number = node.rfind(':');
  std::string out = node.substr(scope == std::string::npos ? 0 : scope + 2);
  if (number != std::string::npos && number != scope + 1) out = out.substr(0, out.rfind(':'));
  while (out.starts_with('_')) out.erase(0, 1);
  std::replace(out.begin(), out.end(), '_', ' ');
  return out;
}

}  // namespace

Graph with_samples(const Sampled& a, const Sampled& b, int64_t samples) {
  DOVETAIL_CHECK(a.samples != b.samples, "two recordings with {} samples", a.samples);
  const auto same = [](const auto& left, const auto& right, auto&& member) {
    return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                      [&](const auto& l, const auto& r) { return member(l) == member(r); });
  };
  user_check(same(a.graph.tensors, b.graph.tensors,
                  [](const GraphTensor& t) { return std::pair(t.kind, t.alias_of); }) &&
                 same(a.graph.nodes, b.graph.nodes,
                      [](const GraphNode& n) { return std::tie(n.name, n.inputs, n.outputs); }),
             "plan: a step of {} samples has other operations than one of {}: what another number "
             "takes is not known",
             a.samples, b.samples);
  Graph out = b.graph;
  for (size_t t = 0; t < out.tensors.size(); ++t)
    out.tensors[t].bytes =
        planned_bytes(on_line(a, a.graph.tensors[t].bytes, b, b.graph.tensors[t].bytes, samples));
  for (size_t n = 0; n < out.nodes.size(); ++n)
    for (size_t i = 0; i < out.nodes[n].algorithms.size(); ++i) {
      int64_t& workspace = out.nodes[n].algorithms[i].workspace_bytes;
      workspace = on_line(a, a.graph.nodes[n].algorithms[i].workspace_bytes, b, workspace, samples);
    }
  out.base_bytes = on_line(a, a.graph.base_bytes, b, b.graph.base_bytes, samples);
  return without_times(std::move(out));
}

Graph without_times(Graph graph) {
  constexpr double kNode_s = 1e-6, kBytesPerS = 1e6;
  graph.bandwidth = {
      .to_host = kBytesPerS, .to_device = kBytesPerS, .duplex = graph.bandwidth.duplex};
  for (Codec& codec : graph.codecs)
    codec.encode_bytes_per_s = codec.decode_bytes_per_s = kBytesPerS;
  for (GraphNode& node : graph.nodes)
    for (Algorithm& algorithm : node.algorithms) algorithm.time_s = kNode_s;
  return graph;
}

int64_t keep_all_bytes(const Graph& graph) {
  Graph unlimited = graph;
  unlimited.budget_bytes = std::numeric_limits<int64_t>::max();
  unlimited.host_bytes.reset();
  // Give each node a duration: nodes without time would all be held at one moment.
  for (GraphNode& node : unlimited.nodes) node.algorithms[0].time_s = 1;
  return check(unlimited, keep_all(unlimited)).peak_bytes;
}

UserError below_floor(const Graph& graph, const Floor& floor, const std::string& what,
                      const std::string& help) {
  const bool close = binary_size(graph.budget_bytes) == binary_size(floor.bytes);
  const auto size = [&](int64_t bytes) {
    return close ? fmt::format("{} bytes", bytes) : binary_size(bytes);
  };
  std::string message = fmt::format("{} = {} is below the floor of this step, {}\n  ", what,
                                    size(graph.budget_bytes), size(floor.bytes));
  const int64_t held = floor.bytes - floor.gaps_bytes;
  if (floor.node < 0) {
    message += "that is what it keeps of its inputs, parameters and state when it begins";
  } else {
    const GraphNode& node = graph.nodes[floor.node];
    std::vector<int> counted;
    const auto sum = [&](const std::vector<int>& list) {
      int64_t bytes = 0;
      for (const int t : list) {
        const int root = graph.root(t);
        if (std::find(counted.begin(), counted.end(), root) != counted.end()) continue;
        counted.push_back(root);
        bytes += graph.tensors[root].bytes;
      }
      return bytes;
    };
    const int64_t changed = sum(node.mutates), made = sum(node.outputs);
    int64_t read = changed + sum(node.inputs);
    const int64_t workspace = floor.workspace_bytes;
    read = std::min(read, held - made - workspace);  // without tensors that it finds on the host
    message +=
        fmt::format("the largest single operation is {}{} (inputs {}, outputs {}, workspace {}",
                    words(node.name), node.layer.empty() ? "" : fmt::format(" of `{}`", node.layer),
                    binary_size(read), binary_size(made), binary_size(workspace));
    if (const int64_t rest = held - read - made - workspace; rest > 0)
      message += fmt::format("; {} beside it may not leave", binary_size(rest));
    message += ")";
  }
  if (floor.gaps_bytes > 0)
    message += fmt::format(", and gaps between places take {}", binary_size(floor.gaps_bytes));
  return UserError(message, help);
}

std::string binary_size(int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double size = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (size < 1024) break;
    size /= 1024;
    unit = next;
  }
  return size < 10 ? fmt::format("{:.2f} {}", size, unit) : fmt::format("{:.1f} {}", size, unit);
}

}  // namespace dovetail::plan
