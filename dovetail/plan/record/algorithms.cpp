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
#include "dovetail/ops/convolution.h"
#include "dovetail/ops/gpu_convolution.h"
#include "dovetail/plan/device/step_device.h"
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

/// Operation that replaces `captured` and makes `makes` from `arguments`. `workspace_bytes`: it
/// allocates its results, then a workspace of this size; otherwise its allocations are not known
/// yet.
CapturedOperation in_place_of(const CapturedOperation& captured, const std::string& name,
                              std::vector<CapturedArgument> arguments, std::vector<int> makes,
                              std::optional<int64_t> workspace_bytes = {}) {
  CapturedOperation out{.handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), ""),
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
  for (size_t i = 0; workspace_bytes && i < out.makes.size(); ++i)
    out.makes_allocation.push_back(static_cast<int>(i));
  if (workspace_bytes.value_or(0) > 0) {
    const auto number = static_cast<int>(out.makes.size());
    out.memory = {{number, *workspace_bytes, false}, {number, *workspace_bytes, true}};
  }
  return out;
}

/// Algorithm for a pass of a convolution. On a GPU its workspace is known, and is an argument of
/// its operation.
struct Choice {
  std::string name;
  std::optional<int64_t> workspace_bytes;
};

/// Convolution of the step that has alternative algorithms.
struct Convolution {
  /// Returns nullopt if the operation has no alternatives.
  static std::optional<Convolution> of(const CapturedOperation& operation, bool on_gpu) {
    const bool backward = operation.name == "aten::convolution_backward";
    if (!backward && operation.name != "aten::convolution") return std::nullopt;
    Convolution out{.operation = operation, .backward = backward, .on_gpu = on_gpu};
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
  bool backward, on_gpu;
  ops::ConvolutionOptions options;
  bool data = false, weight = false, bias = false;           // requested gradients
  int64_t left_bytes = std::numeric_limits<int64_t>::max();  // maximum bytes of a workspace

  const TensorUse& weight_use() const { return operation.arguments[backward ? 2 : 1].uses[0]; }
  const TensorUse& x_use() const { return operation.arguments[backward ? 1 : 0].uses[0]; }

  std::vector<CapturedArgument> geometry(const Choice& choice) const {
    std::vector<CapturedArgument> out = {
        value(std::vector<int64_t>(options.stride.begin(), options.stride.end())),
        value(std::vector<int64_t>(options.padding.begin(), options.padding.end())),
        value(choice.name)};
    if (choice.workspace_bytes) out.push_back(value(*choice.workspace_bytes));
    return out;
  }

  /// Returns the algorithms of a pass, except ATen's, whose workspace is at most `left_bytes`.
  std::vector<Choice> choices(ops::ConvolutionPass pass) const {
    std::vector<Choice> out;
    if (on_gpu) {
      for (ops::GpuConvolutionAlgorithm& found :
           ops::gpu_convolution_algorithms(ops::gpu_convolution_of(
               pass, x_use().sizes, weight_use().sizes, options.stride, options.padding)))
        if (found.workspace_bytes <= left_bytes)
          out.push_back({std::move(found.name), found.workspace_bytes});
      return out;
    }
    for (const auto algorithm :
         {ops::ConvolutionAlgorithm::kIm2col, ops::ConvolutionAlgorithm::kWinograd}) {
      ops::ConvolutionOptions by = options;
      by.algorithm = algorithm;
      if (!ops::why_not(pass, weight_use().sizes, by) &&
          ops::convolution_workspace_bytes(pass, x_use().sizes, weight_use().sizes, by) <=
              left_bytes)
        out.push_back({std::string(ops::name(algorithm)), std::nullopt});
    }
    return out;
  }

  /// Returns the name of our operation for a pass.
  std::string operation_for(const char* suffix) const {
    return fmt::format("dovetail::{}convolution{}", on_gpu ? "gpu_" : "", suffix);
  }
};

/// An algorithm of one pass and its operation.
struct Pass {
  std::string name;
  CapturedOperation operation;
};

void append(std::vector<CapturedArgument>& to, std::vector<CapturedArgument> more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

std::vector<Pass> forward_passes(const Convolution& c) {
  std::vector<Pass> out;
  for (const Choice& choice : c.choices(ops::ConvolutionPass::kForward)) {
    std::vector<CapturedArgument> arguments(c.operation.arguments.begin(),
                                            c.operation.arguments.begin() + 3);
    append(arguments, c.geometry(choice));
    out.push_back({choice.name, in_place_of(c.operation, c.operation_for(""), std::move(arguments),
                                            c.operation.makes, choice.workspace_bytes)});
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
  for (const Choice& choice : c.choices(ops::ConvolutionPass::kBackwardData)) {
    std::vector<CapturedArgument> arguments = {c.operation.arguments[0], c.operation.arguments[2],
                                               value(c.x_use().sizes)};
    append(arguments, c.geometry(choice));
    out.push_back({choice.name,
                   in_place_of(c.operation, c.operation_for("_backward_data"), std::move(arguments),
                               {c.operation.makes[0]}, choice.workspace_bytes)});
  }
  return out;
}

std::vector<Pass> weight_passes(const Convolution& c) {
  if (!c.weight) return {};
  const std::vector<int> makes(c.operation.makes.begin() + (c.data ? 1 : 0),
                               c.operation.makes.end());
  std::vector<Pass> out = {masked(c, {false, true, c.bias}, makes)};
  for (const Choice& choice : c.choices(ops::ConvolutionPass::kBackwardWeight)) {
    std::vector<CapturedArgument> arguments = {c.operation.arguments[0], c.operation.arguments[1],
                                               value(c.weight_use().sizes)};
    append(arguments, c.geometry(choice));
    arguments.push_back(value(c.bias));
    out.push_back({choice.name, in_place_of(c.operation, c.operation_for("_backward_weight"),
                                            std::move(arguments), makes, choice.workspace_bytes)});
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
void record_memory(c10::Device device, CapturedOperation& operation) {
  std::vector<std::pair<int, at::Tensor>> scratch;
  CapturedOperation on_scratch = operation;
  StepTensors found;
  for (CapturedArgument& argument : on_scratch.arguments)
    for (TensorUse& use : argument.uses) {
      if (use.storage < 0) continue;
      use.storage = static_cast<int>(scratch.size());
      use.offset = 0;
      scratch.emplace_back(use.storage,
                           at::zeros(use.sizes, at::TensorOptions(use.dtype).device(device)));
      found.parameters.emplace_back(fmt::format("argument {}", use.storage), scratch.back().second);
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

/// Finds the allocations of an operation. Our GPU operations state their workspaces:
/// only the sizes of their results are missing.
void find_memory(const CapturedStep& step, CapturedOperation& operation, ProfileCache& cache) {
  if (operation.name.starts_with("dovetail::gpu_")) {
    std::vector<MemoryEvent> results;
    for (size_t i = 0; i < operation.makes.size(); ++i)
      results.push_back(
          {static_cast<int>(i), step.storages[operation.makes[i]].bytes, /*ends=*/false});
    operation.memory.insert(operation.memory.begin(), results.begin(), results.end());
    return;
  }
  const std::string key = fmt::format("memory on {} of {}", step_device(step.device).name(),
                                      key_of({&operation, 1}).value());
  if (const auto known = cache.find(key)) {
    operation.makes_allocation = known->at("makes").get<std::vector<int>>();
    for (const nlohmann::json& event : known->at("events"))
      operation.memory.push_back(
          {event.at(0).get<int>(), event.at(1).get<int64_t>(), event.at(2).get<bool>()});
    return;
  }
  record_memory(step.device, operation);
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

}  // namespace

void add_convolution_algorithms(const CapturedStep& step, StepGraph& graph, ProfileCache& cache,
                                int64_t most_bytes) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    StepNode& node = graph.nodes[n];
    const NodeRun captured = run_of(step, node, 0);
    auto convolution = Convolution::of(captured.operations[0], step.device.is_cuda());
    if (!convolution || !node.variants.empty()) continue;
    convolution->left_bytes = most_bytes - bytes_of(step, captured.operations[0]);
    auto& algorithms = graph.graph.nodes[n].algorithms;
    algorithms[0].name = "aten";
    for (auto& [name, operations] : alternatives(*convolution)) {
      for (CapturedOperation& operation : operations) find_memory(step, operation, cache);
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
