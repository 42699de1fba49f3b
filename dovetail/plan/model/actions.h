#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// What one action of a plan does. Computing, compressing and decompressing happen on the compute
/// stream; offloads and prefetches each on a stream of their own, one copy at a time; frees take
/// effect in the order of the list.
enum class Op {
  kCompute,
  kOffload,
  kPrefetch,
  kFree,
  kFreeHost,
  kCompress,
  kDecompress,
  kFreePacked
};
std::string_view name(Op op);

struct Action {
  Op op = Op::kCompute;
  int node = -1;      ///< of a compute
  int algorithm = 0;  ///< of a compute: index into the node's algorithms
  int tensor = -1;    ///< of everything else: a storage
  int codec = -1;     ///< of a compress: index into the graph's codecs
  std::vector<int>
      waits;  ///< positions of earlier actions whose end this one awaits, beside those of its data
};

/// Actions in the order of issue; what its maker claims of them is checked, not believed. As a file
/// it is plan.json, version 1; its schema is in docs/design/plan.md.
struct Plan {
  /// Parameters and state that are on the host, and not on the device, when the step begins; so
  /// they end it.
  std::vector<int> starts_on_host;
  std::vector<Action> actions;
  std::optional<int64_t> claimed_peak_bytes;
  std::optional<double> claimed_makespan_s;
};

nlohmann::ordered_json to_json(const Plan& plan, const Graph& graph);
/// Throws UserError naming the place: an unknown key, operation, node, tensor, algorithm or codec,
/// a wait for an action that is not earlier.
Plan parse_plan(const nlohmann::json& json, const Graph& graph, const std::string& where);
Plan read_plan(const std::filesystem::path& path, const Graph& graph);

}  // namespace dovetail::plan
