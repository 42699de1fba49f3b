#include "dovetail/plan/record/algorithms.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/convolution.h"
#include "dovetail/plan/record/capture.h"
#include "dovetail/plan/record/operation_call.h"

namespace dovetail::plan {
namespace {

using Kind = CapturedArgument::Kind;

/// Reads an argument with one number per dimension, or one number for both. Returns nullopt if the
/// number of dimensions is not two.
std::optional<std::array<int64_t, 2>> two_integers(const c10::IValue& value) {
  std::vector<int64_t> all;
  if (value.isIntList()) {
    all = value.toIntVector();
  } else {
    for (const c10::SymInt& number : value.toSymIntVector())
      all.push_back(number.guard_int(__FILE__, __LINE__));
  }
  if (all.size() != 1 && all.size() != 2) return std::nullopt;
  return std::array{all.front(), all.back()};
}

bool contiguous(const TensorUse& use) {
  int64_t expected = 1;
  for (size_t d = use.sizes.size(); d-- > 0;) {
    if (use.sizes[d] != 1 && use.strides[d] != expected) return false;
    expected *= use.sizes[d];
  }
  return true;
}

CapturedArgument value(c10::IValue given) { return {.value = std::move(given)}; }

/// Operation that replaces `captured` and makes `makes` from `arguments`. Its allocations are not
/// recorded yet.
CapturedOperation in_place_of(const CapturedOperation& captured, const char* name,
                              std::vector<CapturedArgument> arguments, std::vector<int> makes) {
  CapturedOperation out{.handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, ""),
                        .name = name,
                        .layer = captured.layer,
                        .backward = captured.backward,
                        .arguments = std::move(arguments),
                        .makes = std::move(makes)};
  for (const CapturedArgument& argument : out.arguments)
    for (const TensorUse& use : argument.uses)
      if (use.storage >= 0 &&
          std::find(out.reads.begin(), out.reads.end(), use.storage) == out.reads.end())
        out.reads.push_back(use.storage);
  return out;
}

/// Convolution of the step that has alternative algorithms.
struct Convolution {
  /// Returns nullopt if the operation has no alternatives.
  static std::optional<Convolution> of(const CapturedOperation& operation) {
    const bool backward = operation.name == "aten::convolution_backward";
    if (!backward && operation.name != "aten::convolution") return std::nullopt;
    Convolution out{.operation = operation, .backward = backward};
    const auto& a = operation.arguments;
    for (size_t i = 0; i < (backward ? 3 : 2); ++i)
      if (a[i].kind != Kind::kTensor || a[i].uses[0].dtype != at::kFloat ||
          !contiguous(a[i].uses[0]) || a[i].uses[0].sizes.size() != 4)
        return std::nullopt;
    // Arguments from index `bias` on: bias (backward: its sizes), stride, padding, dilation,
    // transposed, output_padding, groups [, output_mask].
    const size_t bias = backward ? 3 : 2;
    if (a[bias].kind == Kind::kTensor &&
        (a[bias].uses[0].dtype != at::kFloat || !contiguous(a[bias].uses[0])))
      return std::nullopt;
    const auto stride = two_integers(a[bias + 1].value), padding = two_integers(a[bias + 2].value);
    const auto dilation = two_integers(a[bias + 3].value);
    if (!stride || !padding || dilation != std::array<int64_t, 2>{1, 1} ||
        a[bias + 4].value.toBool() || a[bias + 6].value.toInt() != 1)
      return std::nullopt;
    out.options.stride = *stride;
    out.options.padding = *padding;
    if (!backward) return out;
    const c10::List<bool> mask = a[10].value.toBoolList();
    out.data = mask[0], out.weight = mask[1], out.bias = mask[2];
    const auto asked = static_cast<size_t>(out.data) + static_cast<size_t>(out.weight) +
                       static_cast<size_t>(out.bias);
    if (operation.makes.size() != asked || asked == 0 || (out.bias && !out.weight))
      return std::nullopt;
    return out;
  }

  const CapturedOperation& operation;
  bool backward;
  ops::ConvolutionOptions options;
  bool data = false, weight = false, bias = false;           // requested gradients
  int64_t left_bytes = std::numeric_limits<int64_t>::max();  // maximum bytes of a workspace

  const TensorUse& weight_use() const { return operation.arguments[backward ? 2 : 1].uses[0]; }
  const TensorUse& x_use() const { return operation.arguments[backward ? 1 : 0].uses[0]; }

  std::vector<CapturedArgument> geometry(std::string_view algorithm) const {
    return {value(std::vector<int64_t>(options.stride.begin(), options.stride.end())),
            value(std::vector<int64_t>(options.padding.begin(), options.padding.end())),
            value(std::string(algorithm))};
  }

  bool applies(ops::ConvolutionPass pass, ops::ConvolutionAlgorithm algorithm) const {
    ops::ConvolutionOptions by = options;
    by.algorithm = algorithm;
    return !ops::why_not(pass, weight_use().sizes, by) &&
           ops::convolution_workspace_bytes(pass, x_use().sizes, weight_use().sizes, by) <=
               left_bytes;
  }
};

/// An algorithm of one pass and its operation.
struct Pass {
  std::string name;
  CapturedOperation operation;
};

constexpr std::array kAlgorithms = {ops::ConvolutionAlgorithm::kIm2col,
                                    ops::ConvolutionAlgorithm::kWinograd};

void append(std::vector<CapturedArgument>& to, std::vector<CapturedArgument> more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

std::vector<Pass> forward_passes(const Convolution& c) {
  std::vector<Pass> out;
  for (const auto algorithm : kAlgorithms) {
    if (!c.applies(ops::ConvolutionPass::kForward, algorithm)) continue;
    std::vector<CapturedArgument> arguments(c.operation.arguments.begin(),
                                            c.operation.arguments.begin() + 3);
    append(arguments, c.geometry(name(algorithm)));
    out.push_back(
        {std::string(name(algorithm)), in_place_of(c.operation, "dovetail::convolution",
                                                   std::move(arguments), c.operation.makes)});
  }
  return out;
}

/// ATen's own backward operation, which computes only the gradients in `mask`.
Pass masked(const Convolution& c, std::array<bool, 3> mask, std::vector<int> makes) {
  std::vector<CapturedArgument> arguments = c.operation.arguments;
  arguments[10] = value(c10::IValue(c10::List<bool>({mask[0], mask[1], mask[2]})));
  return {"aten", in_place_of(c.operation, "aten::convolution_backward", std::move(arguments),
                              std::move(makes))};
}

std::vector<Pass> data_passes(const Convolution& c) {
  if (!c.data) return {};
  std::vector<Pass> out = {masked(c, {true, false, false}, {c.operation.makes[0]})};
  for (const auto algorithm : kAlgorithms) {
    if (!c.applies(ops::ConvolutionPass::kBackwardData, algorithm)) continue;
    std::vector<CapturedArgument> arguments = {c.operation.arguments[0], c.operation.arguments[2],
                                               value(c.x_use().sizes)};
    append(arguments, c.geometry(name(algorithm)));
    out.push_back({std::string(name(algorithm)),
                   in_place_of(c.operation, "dovetail::convolution_backward_data",
                               std::move(arguments), {c.operation.makes[0]})});
  }
  return out;
}

std::vector<Pass> weight_passes(const Convolution& c) {
  if (!c.weight) return {};
  const std::vector<int> makes(c.operation.makes.begin() + (c.data ? 1 : 0),
                               c.operation.makes.end());
  std::vector<Pass> out = {masked(c, {false, true, c.bias}, makes)};
  for (const auto algorithm : kAlgorithms) {
    if (!c.applies(ops::ConvolutionPass::kBackwardWeight, algorithm)) continue;
    std::vector<CapturedArgument> arguments = {c.operation.arguments[0], c.operation.arguments[1],
                                               value(c.weight_use().sizes)};
    append(arguments, c.geometry(name(algorithm)));
    arguments.push_back(value(c.bias));
    out.push_back({std::string(name(algorithm)),
                   in_place_of(c.operation, "dovetail::convolution_backward_weight",
                               std::move(arguments), makes)});
  }
  return out;
}

/// Name and operations of each algorithm except the captured one.
std::vector<std::pair<std::string, std::vector<CapturedOperation>>> alternatives(
    const Convolution& c) {
  std::vector<std::pair<std::string, std::vector<CapturedOperation>>> out;
  if (!c.backward) {
    for (Pass& pass : forward_passes(c))
      out.emplace_back(pass.name, std::vector{std::move(pass.operation)});
    return out;
  }
  const std::vector<Pass> data = data_passes(c), weight = weight_passes(c);
  if (data.empty() || weight.empty()) {
    const auto& only = data.empty() ? weight : data;
    for (size_t i = 1; i < only.size(); ++i)
      out.emplace_back(only[i].name, std::vector{only[i].operation});
    return out;
  }
  for (size_t d = 0; d < data.size(); ++d)
    for (size_t w = 0; w < weight.size(); ++w)
      if (d > 0 || w > 0)
        out.emplace_back(data[d].name + ", " + weight[w].name,
                         std::vector{data[d].operation, weight[w].operation});
  return out;
}

/// Records the allocations of an operation by running it on zeros. It runs once before the
/// recording, because first calls allocate differently.
void record_memory(CapturedOperation& operation) {
  std::vector<std::pair<int, at::Tensor>> scratch;
  CapturedOperation on_scratch = operation;
  StepTensors found;
  for (CapturedArgument& argument : on_scratch.arguments)
    for (TensorUse& use : argument.uses) {
      if (use.storage < 0) continue;
      use.storage = static_cast<int>(scratch.size());
      use.offset = 0;
      scratch.emplace_back(use.storage, at::zeros(use.sizes, use.dtype));
      found.inputs.emplace_back(fmt::format("argument {}", use.storage), scratch.back().second);
    }
  const auto run = [&] {
    std::vector<at::Tensor> made;
    for_each_tensor(
        call(on_scratch, [&](int storage) { return scratch[storage].second.storage(); }),
        [&](const at::Tensor& tensor) { made.push_back(tensor); });
    return made;
  };
  run();
  const CapturedStep recorded = record_step(run, found);
  DOVETAIL_CHECK(recorded.operations.size() == 1 &&
                     recorded.operations[0].makes.size() == operation.makes.size(),
                 "{} is not one operation of {} results", operation.name, operation.makes.size());
  operation.memory = recorded.operations[0].memory;
  operation.makes_allocation = recorded.operations[0].makes_allocation;
}

void find_memory(CapturedOperation& operation, ProfileCache& cache) {
  const std::string key = "memory of " + key_of({&operation, 1}).value();
  if (const auto known = cache.find(key)) {
    operation.makes_allocation = known->at("makes").get<std::vector<int>>();
    for (const nlohmann::json& event : known->at("events"))
      operation.memory.push_back(
          {event.at(0).get<int>(), event.at(1).get<int64_t>(), event.at(2).get<bool>()});
    return;
  }
  record_memory(operation);
  nlohmann::json events = nlohmann::json::array();
  for (const MemoryEvent& event : operation.memory)
    events.push_back({event.allocation, event.bytes, event.ends});
  cache.put(key, {{"makes", operation.makes_allocation}, {"events", events}});
}

/// Bytes of the storages that an operation reads, changes and makes.
int64_t bytes_of(const CapturedStep& step, const CapturedOperation& operation) {
  int64_t bytes = 0;
  for (const auto* list : {&operation.reads, &operation.writes, &operation.makes})
    for (const int storage : *list) bytes += step.storages[storage].bytes;
  return bytes;
}

/// Runs operations on zeros. Storages that an operation makes are read by the next ones.
class OnZeros {
 public:
  OnZeros(const CapturedStep& step, std::span<const CapturedOperation> operations)
      : step_(step), operations_(operations) {}

  /// Returns the seconds of one run.
  double run() {
    double seconds = 0;
    for (const CapturedOperation& operation : operations_) {
      for (const auto* list : {&operation.reads, &operation.writes})
        for (const int storage : *list) zeros(storage);
      for (const int storage : operation.makes) storages_.erase(storage);
      const double begin_s = now_seconds();
      const torch::jit::Stack results =
          call(operation, [this](int storage) { return storages_.at(storage); });
      seconds += now_seconds() - begin_s;
      size_t made = 0;
      for_each_tensor(results, [&](const at::Tensor& tensor) {
        if (made < operation.makes.size())
          storages_.insert_or_assign(operation.makes[made++], tensor.storage());
      });
    }
    return seconds;
  }

 private:
  void zeros(int storage) {
    if (!storages_.contains(storage))
      storages_.emplace(storage, at::zeros({step_.storages[storage].bytes}, at::kByte).storage());
  }

  const CapturedStep& step_;
  const std::span<const CapturedOperation> operations_;
  std::map<int, c10::Storage> storages_;
};

}  // namespace

void time_on_zeros(const CapturedStep& step, StepGraph& graph, ProfileCache& cache) {
  constexpr int kRuns = 3;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    auto& algorithms = graph.graph.nodes[n].algorithms;
    if (graph.nodes[n].variants.empty()) continue;
    for (size_t a = 0; a < algorithms.size(); ++a) {
      const auto operations = run_of(step, graph.nodes[n], static_cast<int>(a)).operations;
      const auto key = key_of(operations);
      const auto known = key ? cache.find("time on zeros of " + *key) : std::nullopt;
      double& time_s = algorithms[a].time_s;
      if (known) {
        time_s = known->get<double>();
        continue;
      }
      OnZeros zeros(step, operations);
      zeros.run();
      time_s = std::numeric_limits<double>::infinity();
      for (int i = 0; i < kRuns; ++i) time_s = std::min(time_s, zeros.run());
      if (key) cache.put("time on zeros of " + *key, time_s);
    }
  }
}

void add_convolution_algorithms(const CapturedStep& step, StepGraph& graph, ProfileCache& cache,
                                int64_t most_bytes) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    StepNode& node = graph.nodes[n];
    const NodeRun captured = run_of(step, node, 0);
    auto convolution = Convolution::of(captured.operations[0]);
    if (!convolution || !node.variants.empty()) continue;
    convolution->left_bytes = most_bytes - bytes_of(step, captured.operations[0]);
    auto& algorithms = graph.graph.nodes[n].algorithms;
    algorithms[0].name = "aten";
    for (auto& [name, operations] : alternatives(*convolution)) {
      for (CapturedOperation& operation : operations) find_memory(operation, cache);
      operations.insert(operations.end(), captured.operations.begin() + 1,
                        captured.operations.end());
      NodeVariant variant{.operations = std::move(operations)};
      variant.memory = place_allocations(variant.operations, graph.tensor_of_storage);
      algorithms.push_back({.name = name, .workspace_bytes = variant.memory.workspace_bytes});
      node.variants.push_back(std::move(variant));
    }
  }
}

}  // namespace dovetail::plan
