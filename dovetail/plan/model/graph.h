#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Graph of one training step, from which planners make plans. A plan (plan/model/actions.h) says
/// when each operation runs, and when each tensor is copied, compressed, freed or recomputed.
/// Memory has two tiers: the device (fast, small) and the host (slow, large). A tensor is resident
/// while it is on the device.
namespace dovetail::plan {

/// Purpose of a tensor in the step. Inputs, parameters and state (of the optimizer, for example)
/// exist before the step. They are resident when it begins, except parameters and state that the
/// plan starts on the host. Outputs are results to be read after the step.
enum class TensorKind { kInput, kParam, kState, kActivation, kGrad, kOutput };
std::string_view name(TensorKind kind);
/// Returns true for inputs, parameters and state.
bool resident_at_start(TensorKind kind);
/// Returns true for parameters and state. A plan may keep these on the host at the start and the
/// end of the step.
bool may_start_on_host(TensorKind kind);

/// One way to run the operation of a node, with its duration. Its workspace is scratch memory in
/// addition to inputs and outputs. Example: a convolution by im2col or by Winograd.
struct Algorithm {
  std::string name;
  double time_s = 0;
  int64_t workspace_bytes = 0;
  /// Tensors that this algorithm reads and changes in host memory instead of device memory. They
  /// are parameters or state that the node changes. They must not be on the device when the
  /// algorithm runs.
  std::vector<int> on_host = {};
  /// Returns true if `on_host` lists the tensor.
  bool finds_on_host(int tensor) const;
};

/// Tensor of a step: a storage, or a view of another tensor. A storage has memory of its own. A
/// view uses the memory of the storage at the end of its `alias_of` chain. Other structs refer to a
/// tensor by its index in Graph::tensors.
struct GraphTensor {
  std::string id;
  int64_t bytes = 0;
  TensorKind kind = TensorKind::kActivation;
  int alias_of = -1;      ///< tensor that this view refers to; -1: this is a storage
  bool lossy_ok = false;  ///< readers may get a copy that was packed by a lossy codec and unpacked
  /// Codecs that can pack the tensor, as indices into Graph::codecs; nullopt: any.
  std::optional<std::vector<int>> codecs;
};

/// Operation of the step. `inputs`, `outputs` and `mutates` are the tensors that it reads, creates
/// and changes in place. Each change in place makes a new version of the storage. The versions that
/// a node reads are defined by the order of Graph::nodes, each node run once. In every plan the
/// node must read the same versions, also when it runs again.
struct GraphNode {
  std::string name;
  std::string layer;  ///< layer of the model, for reports; may be empty
  std::vector<int> inputs, outputs, mutates;
  bool random = false;       ///< draws random numbers
  bool recomputable = true;  ///< false: must run exactly once
  /// True: the node must not read a copy that was packed by a codec and unpacked. This holds for
  /// codecs without loss, too.
  bool reads_unpacked = false;
  std::vector<Algorithm> algorithms;  ///< at least one
  /// Returns true if a plan must not run the node a second time.
  bool runs_once() const { return !mutates.empty() || !recomputable; }
};

/// Way to keep a tensor in packed (compressed) form on the device. The packed form has `ratio`
/// times the bytes of the tensor. Packing (encode) and unpacking (decode) run on the compute
/// stream. Their rates count bytes of the unpacked tensor. `max_error` is the maximum error of an
/// unpacked element, relative to the largest magnitude in its block of elements. `max_error` is 0
/// if the loss affects no operation that may read the unpacked tensor.
struct Codec {
  std::string name;
  double ratio = 1, encode_bytes_per_s = 1, decode_bytes_per_s = 1, max_error = 0;
};

/// Copy rates between the device (the fast, small memory) and the host (the slow, large memory), in
/// bytes per second.
struct Bandwidth {
  double to_host = 1, to_device = 1;
  bool duplex = true;  ///< both directions can run at once
  /// Delay of computing, in seconds per second of copying that overlaps it. On a CPU, computing and
  /// copying compete for cores and memory. `check` (plan/model/check.h) ignores the delay in its
  /// simulation. The expected time of a step (expected_s in plan/model/schedule.h) includes it.
  double slowdown = 0;
};

/// One training step: the input of `check`, the solvers and the executor. The file form is
/// graph.json, version 1; its schema is in docs/design/plan.md.
struct Graph {
  int64_t budget_bytes = 0;  ///< maximum device memory at any time
  Bandwidth bandwidth;
  std::optional<int64_t> host_bytes;  ///< maximum host memory; nullopt: unlimited
  int64_t base_bytes = 0;  ///< device memory in use all the time that belongs to no tensor
  std::vector<Codec> codecs;
  std::vector<GraphTensor> tensors;
  std::vector<GraphNode> nodes;  ///< in an order in which they can run
  /// Tensors that must be on the device when the step ends, in their last version and exact. Exact
  /// means that no lossy codec has changed the values. Tensors that the plan starts on the host are
  /// exempt.
  std::vector<int> final;

  /// Returns the storage of a tensor: the end of its `alias_of` chain.
  int root(int tensor) const;
  /// Returns the device bytes that an algorithm needs in addition to inputs and outputs of its
  /// node. This is the workspace, minus the inputs and outputs that `on_host` lists: these take no
  /// device memory. It can be negative.
  int64_t extra_bytes(const Algorithm& algorithm) const;
  /// Returns true if the codec can pack the tensor and its loss is allowed. Loss is allowed if the
  /// codec has none, or if the tensor has `lossy_ok`.
  bool may_be_packed(int tensor, int codec) const;
  /// Returns the bytes of the tensor's packed form.
  int64_t packed_bytes(int tensor, int codec) const;
};

nlohmann::ordered_json to_json(const Graph& graph);
/// Reads a graph from JSON. Throws UserError for an unknown or missing key, a value of wrong type
/// or sign, or an unknown tensor. Also throws UserError if a node reads a tensor before any node
/// makes it. Errors name the place in the file; `where` is the file's name.
Graph parse_graph(const nlohmann::json& json, const std::string& where);
Graph read_graph(const std::filesystem::path& path);

}  // namespace dovetail::plan
