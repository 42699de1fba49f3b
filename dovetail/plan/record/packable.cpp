#include "dovetail/plan/record/packable.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

namespace dovetail::plan {
namespace {

/// Operator and argument of the backward pass that tolerate a lossy copy. For our operations
/// (base/operation.h), `argument` counts their reads. `count`, if not 0, is the required number of
/// reads.
struct Tolerant {
  std::string_view name;
  int argument = 0;
  int count = 0;
};
constexpr std::array kTolerant = {
    // Products.
    Tolerant{"aten::mm", 0},
    Tolerant{"aten::mm", 1},
    Tolerant{"aten::bmm", 0},
    Tolerant{"aten::bmm", 1},
    Tolerant{"aten::convolution_backward", 1},
    Tolerant{"dovetail::linear_gradient", 1},
    // Input that a quantized Linear saved: an operand, or the input of a norm or an activation
    // before the Linear.
    Tolerant{"dovetail::mx_linear_gradient", 4},
    Tolerant{"dovetail::mx_linear_weight_gradient", 4},
    Tolerant{"dovetail::mx_linear_input_gradient", 4},
    // q, k, v (separate or in one tensor) and the result, but not the logarithms of the sums.
    Tolerant{"dovetail::attention_gradient", 0, 4},
    Tolerant{"dovetail::attention_gradient", 1, 4},
    Tolerant{"dovetail::attention_gradient", 0, 6},
    Tolerant{"dovetail::attention_gradient", 1, 6},
    Tolerant{"dovetail::attention_gradient", 2, 6},
    Tolerant{"dovetail::attention_gradient", 3, 6},
    // Pointwise functions.
    Tolerant{"aten::mul.Tensor", 0},
    Tolerant{"aten::mul.Tensor", 1},
    Tolerant{"aten::threshold_backward", 1},
    Tolerant{"aten::gelu_backward", 1},
    Tolerant{"aten::silu_backward", 1},
    Tolerant{"aten::sigmoid_backward", 1},
    Tolerant{"aten::tanh_backward", 1},
    Tolerant{"dovetail::activation_gradient", 0},
    // Normalizations: the normalized input, but not its statistics.
    Tolerant{"aten::native_layer_norm_backward", 1},
    Tolerant{"aten::native_group_norm_backward", 1},
    Tolerant{"aten::native_batch_norm_backward", 1},
    Tolerant{"dovetail::norm_gradient", 0},
    // Read only for their sizes.
    Tolerant{"aten::max_pool2d_with_indices_backward", 1},
    Tolerant{"aten::avg_pool2d_backward", 1},
};

bool is_ours(const CapturedOperation& operation) {
  return operation.handle.schema().name() == "dovetail::operation";
}

/// Returns the operator name with its overload, such as "aten::mul.Tensor", since overloads differ.
std::string full_name(const CapturedOperation& operation) {
  const auto& overload = operation.handle.schema().overload_name();
  return overload.empty() || is_ours(operation) ? operation.name : operation.name + "." + overload;
}

bool takes_lossy_copy(const CapturedOperation& operation, size_t argument, size_t index) {
  const bool ours = is_ours(operation);
  if (ours && argument != 1) return false;  // arguments: name, reads, changes, body
  const std::string name = full_name(operation);
  return std::any_of(kTolerant.begin(), kTolerant.end(), [&](const Tolerant& known) {
    const size_t at = ours ? index : argument, count = operation.arguments[argument].uses.size();
    return known.name == name && static_cast<size_t>(known.argument) == at &&
           (known.count == 0 || static_cast<size_t>(known.count) == count);
  });
}

bool spans(const TensorUse& use, int64_t bytes) {
  int64_t count = 1, last = use.offset;
  for (size_t d = 0; d < use.sizes.size(); ++d) {
    count *= use.sizes[d];
    last += (use.sizes[d] - 1) * use.strides[d];
  }
  return count > 0 && last == count - 1 &&
         count * static_cast<int64_t>(c10::elementSize(use.dtype)) == bytes;
}

bool is_contiguous(const TensorUse& use) {
  int64_t stride = 1;
  for (size_t d = use.sizes.size(); d-- > 0; stride *= use.sizes[d])
    if (use.sizes[d] != 1 && use.strides[d] != stride) return false;
  return use.offset == 0;
}

/// Returns the form of "dovetail::mx_column_codes.e4m3.round_up" applied to a matrix.
std::optional<PackedForm> form_of_columns(const CapturedOperation& operation,
                                          const TensorUse& use) {
  constexpr std::string_view kName = "dovetail::mx_column_codes.";
  if (!is_ours(operation) || !operation.name.starts_with(kName) || use.sizes.size() != 2)
    return std::nullopt;
  const std::string form = operation.name.substr(kName.size());
  const size_t dot = form.find('.');
  if (use.sizes[0] % kBlock != 0) return std::nullopt;
  return PackedForm{.dtype = use.dtype,
                    .format = mx::parse_format(form.substr(0, dot)),
                    .scale_mode = mx::parse_scale_mode(form.substr(dot + 1)),
                    .columns = use.sizes[1]};
}

/// Returns the codes that the operation computes from its argument. Returns nullopt unless it
/// quantizes all of it in whole blocks.
std::optional<PackedForm> form_made(const CapturedOperation& operation, const TensorUse& use,
                                    int64_t bytes) {
  if (!spans(use, bytes) || !is_contiguous(use)) return std::nullopt;
  if (operation.name != "dovetail::mx_quantize") return form_of_columns(operation, use);
  if (use.dtype != at::kFloat) return std::nullopt;
  const auto text = [&](size_t argument) {
    return operation.arguments[argument].value.toStringRef();
  };
  const auto dimensions = static_cast<int64_t>(use.sizes.size());
  const int64_t axis_in = operation.arguments[3].value.toInt(),
                axis = axis_in < 0 ? axis_in + dimensions : axis_in;
  if (mx::parse_non_finite(text(4)) != mx::NonFinite::kPoison || use.sizes[axis] % kBlock != 0)
    return std::nullopt;
  PackedForm form{.dtype = use.dtype,
                  .format = mx::parse_format(text(1)),
                  .scale_mode = mx::parse_scale_mode(text(2))};
  if (axis == dimensions - 1) return form;
  if (axis > 0) return std::nullopt;
  form.columns = bytes / static_cast<int64_t>(c10::elementSize(use.dtype)) / use.sizes[0];
  return form;
}

/// Uses of one storage in a recorded step.
struct Uses {
  std::optional<at::ScalarType> dtype;
  bool one_dtype = true, spanned = false, backward = false, tolerant = true,
       made_by_forward = false;
  std::optional<PackedForm> form;  // codes that backward computes from it
  bool one_form = true;            // true if backward computes no other codes
};

std::vector<Uses> uses_of(const CapturedStep& step, const StepGraph& graph) {
  std::vector<Uses> out(step.storages.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (int o = graph.nodes[n].first; o < graph.nodes[n].last; ++o) {
      const CapturedOperation& operation = step.operations[o];
      for (const int storage : operation.makes)
        out[storage].made_by_forward = !operation.backward && !graph.graph.nodes[n].random;
      for (size_t a = 0; a < operation.arguments.size(); ++a)
        for (size_t i = 0; i < operation.arguments[a].uses.size(); ++i) {
          const TensorUse& use = operation.arguments[a].uses[i];
          if (use.storage < 0) continue;
          Uses& of = out[use.storage];
          of.one_dtype = of.one_dtype && of.dtype.value_or(use.dtype) == use.dtype;
          of.dtype = use.dtype;
          of.spanned = of.spanned || spans(use, step.storages[use.storage].bytes);
          if (!operation.backward) continue;
          const auto form = form_made(operation, use, step.storages[use.storage].bytes);
          of.one_form = of.one_form && form && (!of.backward || of.form == form);
          of.form = form;
          of.backward = true;
          of.tolerant = of.tolerant && takes_lossy_copy(operation, a, i);
        }
    }
  return out;
}

int codec_for(StepGraph& graph, const PackedForm& form, double max_error) {
  for (size_t c = 0; c < graph.forms.size(); ++c)
    if (graph.forms[c] == form && graph.graph.codecs[c].max_error == max_error)
      return static_cast<int>(c);
  graph.forms.push_back(form);
  graph.graph.codecs.push_back(codec_of(form, max_error));
  return static_cast<int>(graph.forms.size()) - 1;
}

/// Calls `visit` with each activation that does not change after its computation, and with its
/// uses.
template <class Visit>
void for_each_packable(const CapturedStep& step, StepGraph& graph, Visit&& visit) {
  std::vector<bool> changes(graph.graph.tensors.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    GraphNode& node = graph.graph.nodes[n];
    for (const int t : node.mutates) changes[t] = true;
    for (int o = graph.nodes[n].first; o < graph.nodes[n].last; ++o)
      node.reads_unpacked = node.reads_unpacked || !step.operations[o].backward;
  }
  const std::vector<Uses> uses = uses_of(step, graph);
  for (size_t t = 0; t < graph.graph.tensors.size(); ++t) {
    GraphTensor& tensor = graph.graph.tensors[t];
    if (!tensor.codecs) tensor.codecs.emplace();
    const Uses& of = uses[graph.storage_of_tensor[t]];
    if (tensor.kind == TensorKind::kActivation && !changes[t] && of.backward && of.one_dtype &&
        of.spanned)
      visit(tensor, of);
  }
}

}  // namespace

void allow_loss(const CapturedStep& step, StepGraph& graph) {
  for_each_packable(step, graph, [&](GraphTensor& tensor, const Uses& of) {
    if (!of.made_by_forward || !of.tolerant ||
        (of.dtype != at::kFloat && of.dtype != at::kBFloat16))
      return;
    tensor.lossy_ok = true;
    if (tensor.codecs->empty())
      tensor.codecs->push_back(codec_for(graph, {.dtype = *of.dtype}, kLargestError));
  });
}

void allow_same_codes(const CapturedStep& step, StepGraph& graph) {
  for_each_packable(step, graph, [&](GraphTensor& tensor, const Uses& of) {
    if (of.one_form) tensor.codecs->push_back(codec_for(graph, *of.form, 0));
  });
}

void measure_codecs(StepGraph& graph, int64_t bytes, int rounds) {
  for (size_t c = 0; c < graph.forms.size(); ++c)
    measure(graph.forms[c], bytes, rounds, graph.graph.codecs[c]);
}

}  // namespace dovetail::plan
