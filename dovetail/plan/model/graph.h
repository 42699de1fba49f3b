#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail::plan {

/// Purpose of a tensor. Inputs, parameters and state are resident when the step begins, unless the
/// plan starts them on the host.
enum class TensorKind { kInput, kParam, kState, kActivation, kGrad, kOutput };
std::string_view name(TensorKind kind);
bool resident_at_start(TensorKind kind);
/// Returns true for parameters and state. A plan may keep these on the host at the start and the
/// end of the step.
bool may_start_on_host(TensorKind kind);

/// One way to run an operation: its seconds, and its workspace in addition to inputs and outputs.
struct Algorithm {
  std::string name;
  double time_s = 0;
  int64_t workspace_bytes = 0;
  /// Parameters and state that the node mutates and that this algorithm reads and changes in host
  /// memory. They are not on the device then.
  std::vector<int> on_host = {};
  bool finds_on_host(int tensor) const;
};

/// Storage, or a view of one. A view uses the memory of the storage at the end of its `alias_of`
/// chain.
struct GraphTensor {
  std::string id;
  int64_t bytes = 0;
  TensorKind kind = TensorKind::kActivation;
  int alias_of = -1;      ///< tensor that this one is a view of; -1: a storage
  bool lossy_ok = false;  ///< readers may get a copy that went through a lossy codec
  std::optional<std::vector<int>> codecs;  ///< codecs that can hold the tensor; nullopt: any
};

/// Operation of the step. `inputs`, `outputs` and `mutates` are tensor indices. Each write in place
/// makes a new version of its storage. A reader needs the version that the storage had when the
/// step was captured.
struct GraphNode {
  std::string name;
  std::string layer;  ///< layer of the model, for reports; may be empty
  std::vector<int> inputs, outputs, mutates;
  bool random = false;
  bool recomputable = true;
  bool reads_unpacked = false;        ///< must not get a copy that went through a codec
  std::vector<Algorithm> algorithms;  ///< at least one
  bool runs_once() const { return !mutates.empty() || !recomputable; }
};

/// Packed form of a tensor with `ratio` times the exact bytes. It is encoded and decoded on the
/// compute stream. Rates count bytes of the exact tensor. `max_error` is the maximum error of an
/// element, relative to the largest magnitude in its block. It is 0 if no reader that may get the
/// form sees a loss.
struct Codec {
  std::string name;
  double ratio = 1, encode_bytes_per_s = 1, decode_bytes_per_s = 1, max_error = 0;
};

/// Copy rates between the device (the fast, small memory) and the host (the slow, large memory), in
/// bytes per second.
struct Bandwidth {
  double to_host = 1, to_device = 1;
  bool duplex = true;  ///< both directions can run at once
  /// Delay of computing during copies, in seconds per second of copying. On a CPU both need cores
  /// and memory. The simulated clock (plan/model/check.h) ignores it; the expected time of a step
  /// includes it.
  double slowdown = 0;
};

/// One training step: the input of check, solvers and the executor. The file form is graph.json,
/// version 1; its schema is in docs/design/plan.md.
struct Graph {
  int64_t budget_bytes = 0;
  Bandwidth bandwidth;
  std::optional<int64_t> host_bytes;  ///< host memory; nullopt: unlimited
  int64_t base_bytes = 0;             ///< always resident, part of no tensor
  std::vector<Codec> codecs;
  std::vector<GraphTensor> tensors;
  std::vector<GraphNode> nodes;  ///< in an order that can run
  std::vector<int> final;        ///< tensors that must be on the device, exact, at the end

  int root(int tensor) const;  ///< storage of a tensor
  /// Device bytes that an algorithm needs in addition to the inputs and outputs of its node.
  /// Tensors that it finds on the host are subtracted.
  int64_t extra_bytes(const Algorithm& algorithm) const;
  bool may_be_packed(int tensor, int codec) const;
  int64_t packed_bytes(int tensor, int codec) const;
};

nlohmann::ordered_json to_json(const Graph& graph);
/// Throws UserError that names the place in the file. Causes: an unknown or missing key, a value of
/// wrong type or sign, an unknown tensor. A node that reads a tensor before any node makes it, too.
Graph parse_graph(const nlohmann::json& json, const std::string& where);
Graph read_graph(const std::filesystem::path& path);

}  // namespace dovetail::plan
