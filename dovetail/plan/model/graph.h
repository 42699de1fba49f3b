#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail::plan {

/// What a tensor is for. Inputs, parameters and state are resident when the step begins, unless the
/// plan has them start on the host.
enum class TensorKind { kInput, kParam, kState, kActivation, kGrad, kOutput };
std::string_view name(TensorKind kind);
bool resident_at_start(TensorKind kind);
/// Parameters and state: a plan may say that they begin and end the step on the host instead.
bool may_start_on_host(TensorKind kind);

/// One way to run an operation: its seconds, and the bytes that it needs beside its inputs and
/// outputs meanwhile.
struct Algorithm {
  std::string name;
  double time_s = 0;
  int64_t workspace_bytes = 0;
  /// Storages that its node mutates and that it reads and changes where they lie on the host: they
  /// are not on the device then. Parameters and state.
  std::vector<int> on_host = {};
  bool finds_on_host(int tensor) const;
};

/// A storage, or a view of one: memory is that of the storage at the end of the chain of
/// `alias_of`.
struct GraphTensor {
  std::string id;
  int64_t bytes = 0;
  TensorKind kind = TensorKind::kActivation;
  int alias_of = -1;      ///< the tensor that this one is a view of
  bool lossy_ok = false;  ///< readers may be given a copy that went through a lossy codec
  std::optional<std::vector<int>> codecs;  ///< those that can hold it; absent: any
};

/// An operation of the step. `inputs`, `outputs` and `mutates` are indices of tensors; each write
/// in place makes a new version of its storage, and every reader needs the version that stood there
/// when the step was captured.
struct GraphNode {
  std::string name;
  std::string layer;  ///< where in the model, for reports; may be empty
  std::vector<int> inputs, outputs, mutates;
  bool random = false;
  bool recomputable = true;
  bool reads_unpacked = false;        ///< it is never given a copy that went through a codec
  std::vector<Algorithm> algorithms;  ///< at least one
  bool runs_once() const { return !mutates.empty() || !recomputable; }
};

/// A packed form: `ratio` of the exact bytes, made and undone on the compute stream at bytes of the
/// exact tensor a second. `max_error` is the largest error of an element, as a share of the largest
/// magnitude in its block; 0 for a form without loss to the readers that may have it.
struct Codec {
  std::string name;
  double ratio = 1, encode_bytes_per_s = 1, decode_bytes_per_s = 1, max_error = 0;
};

/// Copies between the device (the fast, small memory) and the host (the slow, large one): bytes a
/// second.
struct Bandwidth {
  double to_host = 1, to_device = 1;
  bool duplex = true;  ///< both directions at once
  /// By how much computing falls behind during a copy, in seconds a second: on a CPU both want
  /// cores and memory. Not part of the simulated clock (plan/model/check.h); it is added to what a
  /// step is expected to take.
  double slowdown = 0;
};

/// One training step: what check, solvers and the executor work on. As a file it is graph.json,
/// version 1; its schema is in docs/design/plan.md.
struct Graph {
  int64_t budget_bytes = 0;
  Bandwidth bandwidth;
  std::optional<int64_t> host_bytes;  ///< of the host memory; absent: enough
  int64_t base_bytes = 0;             ///< resident always, of no tensor
  std::vector<Codec> codecs;
  std::vector<GraphTensor> tensors;
  std::vector<GraphNode> nodes;  ///< in an order that can be run
  std::vector<int> final;        ///< tensors that must be on the device, exact, when the step ends

  int root(int tensor) const;  ///< the storage of a tensor
  /// What an algorithm takes on the device beside the inputs and outputs of its node, less those
  /// that it finds on the host.
  int64_t extra_bytes(const Algorithm& algorithm) const;
  bool may_be_packed(int tensor, int codec) const;
  int64_t packed_bytes(int tensor, int codec) const;
};

nlohmann::ordered_json to_json(const Graph& graph);
/// Throws UserError naming the place in the file: an unknown or missing key, a value of the wrong
/// type or sign, a tensor that is not there, a node that reads what no node before it made.
Graph parse_graph(const nlohmann::json& json, const std::string& where);
Graph read_graph(const std::filesystem::path& path);

}  // namespace dovetail::plan
