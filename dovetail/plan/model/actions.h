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

/// Kind of an action of a plan. Three streams run at the same time; each runs one action at a time.
/// Compute, compress and decompress share the compute stream. Offloads and prefetches have a stream
/// each. A free takes no time. Actions listed after a free can no longer use the freed copy.
enum class Op {
  kCompute,     ///< runs a node
  kOffload,     ///< copies a tensor from the device to the host
  kPrefetch,    ///< copies a tensor from the host to the device; also called fetch
  kFree,        ///< releases a tensor's memory on the device
  kFreeHost,    ///< releases a tensor's copy on the host
  kCompress,    ///< packs a tensor by a codec; the unpacked copy stays until a free
  kDecompress,  ///< unpacks a tensor
  kFreePacked   ///< releases a tensor's packed form
};
std::string_view name(Op op);

/// One action. Node, tensor and codec are indices into the vectors of Graph.
struct Action {
  Op op = Op::kCompute;
  int node = -1;      ///< index of the node; compute only
  int algorithm = 0;  ///< index into the node's algorithms; compute only
  int tensor = -1;    ///< index of a storage; all actions except compute
  int codec = -1;     ///< index into the graph's codecs; compress only
  /// Positions, in Plan::actions, of earlier actions that must end before this one starts. An
  /// action always waits for the actions that provide its data; they need no entry here.
  std::vector<int> waits;
};

/// Actions of a step in issue order. The file form is plan.json, version 1; its schema is in
/// docs/design/plan.md.
struct Plan {
  /// Parameters and state that are only on the host when the step begins. They must be on the host
  /// again when the step ends.
  std::vector<int> starts_on_host;
  std::vector<Action> actions;
  /// Peak device memory in bytes, as claimed by the author of the plan. `check`
  /// (plan/model/check.h) rejects a plan that needs more.
  std::optional<int64_t> claimed_peak_bytes;
  /// Time from the start of the step to the end of its last action, as claimed by the plan's
  /// author. `check` rejects a plan whose simulated time differs by more than 2 %.
  std::optional<double> claimed_makespan_s;
};

nlohmann::ordered_json to_json(const Plan& plan, const Graph& graph);
/// Reads a plan for `graph` from JSON. Throws UserError for an unknown key, operation, node,
/// tensor, algorithm or codec. Also throws UserError if an action waits for an action that is not
/// earlier. Errors name the place in the file; `where` is the file's name.
Plan parse_plan(const nlohmann::json& json, const Graph& graph, const std::string& where);
Plan read_plan(const std::filesystem::path& path, const Graph& graph);

}  // namespace dovetail::plan
