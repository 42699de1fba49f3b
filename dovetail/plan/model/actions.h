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

/// Kind of an action. Compute, compress and decompress run on the compute stream. Offloads (device
/// to host) and prefetches (host to device) each have their own stream, one copy at a time. Frees
/// take effect in list order.
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
  int node = -1;      ///< node index; compute only
  int algorithm = 0;  ///< index into the node's algorithms; compute only
  int tensor = -1;    ///< index of a storage; all actions except compute
  int codec = -1;     ///< index into the graph's codecs; compress only
  /// Positions of earlier actions that must end first. Actions that bring this action's data
  /// are awaited without an entry here.
  std::vector<int> waits;
};

/// Actions in issue order. `check` (plan/model/check.h) verifies the claims. The file form is
/// plan.json, version 1; its schema is in docs/design/plan.md.
struct Plan {
  /// Parameters and state that are on the host, and not on the device, when the step begins. They
  /// must be on the host again when it ends.
  std::vector<int> starts_on_host;
  std::vector<Action> actions;
  std::optional<int64_t> claimed_peak_bytes;
  std::optional<double> claimed_makespan_s;
};

nlohmann::ordered_json to_json(const Plan& plan, const Graph& graph);
/// Throws UserError that names the place in the file. Causes: an unknown key, operation, node,
/// tensor, algorithm or codec, or a wait for an action that is not earlier.
Plan parse_plan(const nlohmann::json& json, const Graph& graph, const std::string& where);
Plan read_plan(const std::filesystem::path& path, const Graph& graph);

}  // namespace dovetail::plan
