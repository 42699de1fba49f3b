#include "dovetail/mx/linear_group.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/trace.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/mx/operand.h"
#include "dovetail/ops/gemm.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::mx {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct GroupHolder : torch::CustomClassHolder {
  std::vector<std::shared_ptr<QuantizedLinear>> layers;
  QuantizedLinear::Prologue activation;
  bool bias = false;

  size_t groups() const { return layers.size(); }
  const LinearRecipe& recipe() const { return layers[0]->recipe(); }
};

/// Returns the number of rows of each group. `recorded` is RowGroups::recorded.
std::vector<int64_t> counts_of(const std::vector<int64_t>& offsets, const at::Tensor& recorded,
                               int64_t rows) {
  const size_t groups =
      (recorded.defined() ? static_cast<size_t>(recorded.size(0)) : offsets.size()) - 1;
  const auto* offset = recorded.defined() ? recorded.const_data_ptr<int64_t>() : offsets.data();
  std::vector<int64_t> counts;
  for (size_t g = 0; g < groups; ++g) counts.push_back(offset[g + 1] - offset[g]);
  DOVETAIL_CHECK(offset[0] == 0 && offset[groups] == rows, "groups of {} rows, but x has {}",
                 offset[groups], rows);
  return counts;
}

/// Products in bfloat16 on the CPU are added to float32 results. The kernel of
/// ops/gemm.h then computes them, and their memory does not depend on the groups.
bool adds_to_float32(at::ScalarType dtype, const at::Tensor& operand) {
  return dtype == at::kBFloat16 && operand.is_cpu();
}

/// Numbers 0, 1, ... for `GemmOptions::c_rows`, if products are added to float32.
at::Tensor row_numbers(bool adds, int64_t rows) {
  return adds ? at::arange(rows, at::kInt) : at::Tensor();
}

/// Returns a[g] @ b[g], plus biases[g] if there are any, for all groups, one below the other. b[g]
/// is transposed if `transpose_b` is set. Operands are in `dtype`.
at::Tensor multiply_rows(at::TensorList a, at::TensorList b, bool transpose_b,
                         at::TensorList biases, at::ScalarType dtype) {
  const bool adds = adds_to_float32(dtype, a[0]);
  std::vector<int64_t> counts;
  int64_t rows = 0, most = 0;
  for (const at::Tensor& part : a) {
    counts.push_back(part.size(0));
    rows += part.size(0);
    most = std::max(most, part.size(0));
  }
  const at::Tensor c = at::empty({rows, b[0].size(transpose_b ? 0 : 1)},
                                 a[0].options().dtype(adds ? at::kFloat : dtype)),
                   order = row_numbers(adds, rows);
  if (adds && biases.empty()) c.zero_();
  const variable_list c_of = c.split_with_sizes(counts);
  std::vector<ops::GemmCall> calls;
  for (size_t g = 0; g < a.size(); ++g) {
    // Converted for groups without rows, too, so that all steps allocate the same memory.
    const at::Tensor bias =
        biases.empty() ? at::Tensor() : biases[g].to(c.scalar_type()).contiguous();
    if (counts[g] == 0) continue;
    if (adds && bias.defined()) c_of[g].copy_(bias);
    calls.push_back({c_of[g],
                     a[g],
                     b[g],
                     {.transpose_b = transpose_b,
                      .accumulate = adds,
                      .bias = adds ? at::Tensor() : bias,
                      .c_rows = adds ? order.narrow(0, 0, counts[g]) : at::Tensor()}});
  }
  ops::gemm_group(calls);
  return c;
}

/// Returns a[g]^T @ b[g] of each group as `made`. Groups without rows give zeros.
variable_list multiply_columns(at::TensorList a, at::TensorList b, at::ScalarType dtype,
                               at::ScalarType made) {
  const bool adds = adds_to_float32(dtype, a[0]);
  const int64_t height = a[0].size(1), width = b[0].size(1);
  const auto options = a[0].options().dtype(adds ? at::kFloat : dtype);
  const at::Tensor order = row_numbers(adds, height);
  variable_list c;
  std::vector<ops::GemmCall> calls;
  for (size_t g = 0; g < a.size(); ++g) {
    c.push_back(at::empty({height, width}, options));
    if (adds || a[g].size(0) == 0) c.back().zero_();
    if (a[g].size(0) == 0) continue;
    calls.push_back(
        {c.back(), a[g], b[g], {.transpose_a = true, .accumulate = adds, .c_rows = order}});
  }
  ops::gemm_group(calls);
  for (at::Tensor& one : c) one = one.to(made);
  return c;
}

/// Returns the sums of the columns of each group's rows of dy, in dy's dtype. They are summed in
/// float32.
variable_list sum_columns(const at::Tensor& dy, const std::vector<int64_t>& counts) {
  const at::Tensor wide = dy.to(at::kFloat), ones = at::ones({1, dy.size(0)}, wide.options());
  variable_list sums;
  std::vector<ops::GemmCall> calls;
  int64_t first = 0;
  for (const int64_t count : counts) {
    sums.push_back(at::empty({1, dy.size(1)}, wide.options()));
    if (count == 0) {
      sums.back().zero_();
    } else {
      calls.push_back({sums.back(), ones.narrow(1, first, count), wide.narrow(0, first, count)});
    }
    first += count;
  }
  ops::gemm_group(calls);
  for (at::Tensor& sum : sums) sum = sum.squeeze(0).to(dy.scalar_type());
  return sums;
}

/// Returns the rows of each group as rows that are made when they are read.
std::vector<ops::MadeRows> split_rows(const ops::MadeRows& all,
                                      const std::vector<int64_t>& counts) {
  std::vector<ops::MadeRows> parts;
  int64_t first = 0;
  for (const int64_t count : counts) {
    parts.push_back({.sizes = {count, all.sizes[1]},
                     .dtype = all.dtype,
                     .make = [make = all.make, first](int64_t row, int64_t rows,
                                                      void* to) { make(first + row, rows, to); },
                     .on_gpu = {}});
    first += count;
  }
  return parts;
}

}  // namespace

/// `tensors` holds x, the weights of the groups, then their biases if any.
class LinearGroupFunction : public torch::autograd::Function<LinearGroupFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, at::TensorList tensors,
                            const RowGroups& groups,
                            const c10::intrusive_ptr<GroupHolder>& holder) {
    Operands inputs{.reads = tensors.vec()};
    inputs.reads.push_back(groups.recorded);
    context->save_for_backward(inputs.reads);
    context->saved_data["holder"] = c10::IValue::make_capsule(holder);
    context->saved_data["offsets"] = groups.offsets;
    return operation("dovetail::mx_linear_group", std::move(inputs),
                     [holder, calls = next_calls(*holder, Operand::kActivation),
                      offsets = groups.offsets](const Operands& given) {
                       return std::vector{multiply(*holder, given.reads, offsets, calls)};
                     })[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto holder =
        c10::static_intrusive_pointer_cast<GroupHolder>(context->saved_data["holder"].toCapsule());
    variable_list inputs = context->get_saved_variables();
    const auto offsets = context->saved_data["offsets"].toIntVector();
    at::Tensor scales;  // scales of codes that replace x
    if (context->needs_input_grad(1) && leaves_column_to_plan(*holder, inputs[0], offsets))
      std::tie(inputs[0], scales) = column_codes(inputs[0], holder->recipe().activation);
    inputs.push_back(scales);
    inputs.push_back(gradients[0].contiguous());
    const size_t groups = holder->groups();
    const Wanted wanted = {.input = context->needs_input_grad(0),
                           .weight = context->needs_input_grad(1),
                           .bias = holder->bias && context->needs_input_grad(1 + groups)};
    const auto calls = next_calls(*holder, Operand::kGradient);
    const auto one = [&](const char* name, const Wanted& some, const Calls& of_calls) {
      Operands operands{.reads = inputs};
      for (size_t g = 0; g < groups; ++g)
        if (!some.input) operands.reads[1 + g] = at::Tensor();
      if (!some.weight && holder->activation == nullptr)
        operands.reads[0] = operands.reads[operands.reads.size() - 2] = at::Tensor();
      return operation(name, std::move(operands),
                       [holder, some, of_calls, offsets](const Operands& given) {
                         return differentiate(*holder, given.reads, offsets, of_calls, some);
                       });
    };
    variable_list out;
    if (!operations_are_recorded() || !wanted.input || !wanted.weight) {
      out = one("dovetail::mx_linear_group_gradient", wanted, calls);
    } else {
      // One operation for each product, so that a plan need not hold the operands of both.
      Calls uncounted = calls;
      for (auto& call : uncounted) call.counts = false;
      out = one("dovetail::mx_linear_group_weight_gradient", {.weight = true, .bias = wanted.bias},
                uncounted);
      out[0] = one("dovetail::mx_linear_group_input_gradient", {.input = true}, calls)[0];
    }
    out.resize(1 + (holder->bias ? 2 : 1) * groups + 2);  // groups and holder have no gradients
    return out;
  }

 private:
  using Calls = std::vector<QuantizedLinear::Call>;
  struct Wanted {
    bool input = false, weight = false, bias = false;
  };

  static Calls next_calls(const GroupHolder& holder, Operand operand) {
    Calls calls;
    for (const auto& layer : holder.layers)
      calls.push_back(layer->recipe().of(operand).format ? layer->next_call(operand)
                                                         : QuantizedLinear::Call{});
    return calls;
  }

  /// Quantizes the operand of each group, and adds to the statistics of its Linear.
  template <class X>
  static GroupCopies quantized(const GroupHolder& holder, Operand operand,
                               const std::vector<X>& parts, const OperandRequest& request,
                               const Calls& calls, at::ScalarType dtype) {
    std::vector<OperandRequest> requests;
    for (size_t g = 0; g < holder.groups(); ++g) {
      const QuantizedLinear& layer = *holder.layers[g];
      requests.push_back(request);
      requests.back().seed = mix_seed(layer.seed_, calls[g].number);
      requests.back().count = layer.count_ && calls[g].counts;
    }
    GroupCopies copies =
        quantize_operands(std::span<const X>(parts), holder.recipe().of(operand), requests, dtype);
    for (size_t g = 0; g < holder.groups(); ++g)
      holder.layers[g]->record(operand, request.row, calls[g], copies.statistics[g]);
    return copies;
  }

  /// Returns the copies of x's rows, or of x itself if the recipe does not quantize it.
  static GroupCopies copies_of_rows(const GroupHolder& holder, Operand operand, const at::Tensor& x,
                                    const std::vector<int64_t>& counts,
                                    const OperandRequest& request, const Calls& calls,
                                    at::ScalarType dtype) {
    if (holder.recipe().of(operand).format)
      return quantized(holder, operand, x.split_with_sizes(counts), request, calls, dtype);
    const variable_list parts = x.to(dtype).split_with_sizes(counts);
    return {.row = parts, .column = parts, .statistics = {}};
  }

  /// Returns the copies of the activation of x, or of x if there is none.
  static GroupCopies copies_of_input(const GroupHolder& holder, const at::Tensor& x,
                                     const std::vector<int64_t>& counts,
                                     const OperandRequest& request, const Calls& calls,
                                     at::ScalarType dtype) {
    const OperandRecipe& recipe = holder.recipe().activation;
    const ops::RowOperation* activation = holder.activation.get();
    const bool by_rows = activation != nullptr && recipe.format && recipe.is_microscaling() &&
                         x.is_cpu() && activation->has_rows(x);
    if (!by_rows)
      return copies_of_rows(holder, Operand::kActivation,
                            activation != nullptr ? activation->apply(x) : x, counts, request,
                            calls, dtype);
    ops::RowOperation::Statistics none;  // an activation has none
    return quantized(holder, Operand::kActivation, split_rows(activation->rows(x, none), counts),
                     request, calls, dtype);
  }

  static GroupCopies copies_of_weights(const GroupHolder& holder, at::TensorList weights,
                                       const OperandRequest& request, at::ScalarType dtype) {
    if (holder.recipe().weight.format)
      return quantized(holder, Operand::kWeight, weights.vec(), request, Calls(weights.size()),
                       dtype);
    GroupCopies copies;
    for (const at::Tensor& weight : weights) copies.row.push_back(weight.to(dtype));
    copies.column = copies.row;
    return copies;
  }

  /// Computes forward. `reads`: the function's tensors, then RowGroups::recorded.
  static at::Tensor multiply(const GroupHolder& holder, const variable_list& reads,
                             const std::vector<int64_t>& offsets, const Calls& calls) {
    const TraceSpan span("dovetail::mx_linear_group");
    const at::Tensor& x = reads[0];
    const at::TensorList all(reads);
    const size_t groups = holder.groups();
    const auto counts = counts_of(offsets, reads.back(), x.size(0));
    const LinearRecipe& recipe = holder.recipe();
    const at::ScalarType dtype = emulation_dtype(x, recipe.activation, recipe.weight);
    const GroupCopies of_x = copies_of_input(holder, x, counts, {.row = true}, calls, dtype),
                      of_weight =
                          copies_of_weights(holder, all.slice(1, groups), {.row = true}, dtype);
    return multiply_rows(of_x.row, of_weight.row, /*transpose_b=*/true,
                         all.slice(1 + groups, holder.bias ? groups : 0), dtype)
        .to(x.scalar_type());
  }

  /// Returns true if backward makes the column copy of x as one matrix (`column_codes`). Each group
  /// then has whole blocks.
  static bool leaves_column_to_plan(const GroupHolder& holder, const at::Tensor& x,
                                    const std::vector<int64_t>& offsets) {
    return holder.activation == nullptr && !offsets.empty() && holder.recipe().activation.format &&
           std::ranges::all_of(offsets, [](int64_t row) { return row % kBlock == 0; }) &&
           holder.layers[0]->leaves_column_to_plan(x);
  }

  /// Computes the gradients of the function's tensors. `reads`: the tensors, RowGroups::recorded,
  /// scales of x's codes, the gradient dy of y. With scales, codes replace x. Tensors that the
  /// wanted gradients do not need are undefined.
  static variable_list differentiate(const GroupHolder& holder, const variable_list& reads,
                                     const std::vector<int64_t>& offsets, const Calls& calls,
                                     const Wanted& wanted) {
    const TraceSpan span("dovetail::mx_linear_group_backward");
    const size_t groups = holder.groups();
    const at::Tensor &x = reads[0], &recorded = reads[reads.size() - 3],
                     &scales = reads[reads.size() - 2], &dy = reads.back();
    const auto counts = counts_of(offsets, recorded, dy.size(0));
    const LinearRecipe& recipe = holder.recipe();
    const at::ScalarType for_weight = emulation_dtype(dy, recipe.gradient, recipe.activation),
                         for_input = emulation_dtype(dy, recipe.gradient, recipe.weight),
                         shared = for_weight == for_input ? for_input : at::kFloat;
    variable_list out(1 + (holder.bias ? 2 : 1) * groups);
    GroupCopies of_dy;
    if (wanted.input || wanted.weight)
      of_dy = copies_of_rows(holder, Operand::kGradient, dy, counts,
                             {.row = wanted.input, .column = wanted.weight}, calls, shared);
    const auto as = [shared](variable_list parts, at::ScalarType dtype) {
      if (dtype != shared)
        for (at::Tensor& part : parts) part = part.to(dtype);
      return parts;
    };
    if (wanted.weight) {
      const Calls uncounted(groups, QuantizedLinear::Call{.counts = false});  // forward counted x
      GroupCopies of_x;
      if (scales.defined()) {
        of_x.column = dequantize_kept(x, scales, recipe.activation, for_weight)
                          .column.split_with_sizes(counts);
      } else {
        of_x = copies_of_input(holder, x, counts, {.column = true}, uncounted, for_weight);
      }
      std::ranges::move(multiply_columns(as(std::move(of_dy.column), for_weight), of_x.column,
                                         for_weight, dy.scalar_type()),
                        out.begin() + 1);
    }
    of_dy.column.clear();
    if (wanted.input) {
      const GroupCopies of_weight = copies_of_weights(
          holder, at::TensorList(reads).slice(1, groups), {.column = true}, for_input);
      out[0] = multiply_rows(as(std::move(of_dy.row), for_input), of_weight.column,
                             /*transpose_b=*/false, {}, for_input)
                   .to(dy.scalar_type());
      if (holder.activation != nullptr) out[0] = activation_gradient(*holder.activation, x, out[0]);
    }
    if (wanted.bias)
      std::ranges::move(sum_columns(dy, counts),
                        out.begin() + 1 + static_cast<std::ptrdiff_t>(groups));
    return out;
  }
};

LinearGroup::LinearGroup(std::span<const Linear* const> linears)
    : linears_(linears.begin(), linears.end()) {
  DOVETAIL_CHECK(!linears_.empty(), "a group of no Linears");
}

std::string LinearGroup::obstacle(std::span<const Linear* const> linears, at::ScalarType dtype,
                                  at::Device device) {
  const Linear& first = *linears.front();
  const QuantizedLinear* quantized = first.quantized();
  for (const Linear* linear : linears) {
    const QuantizedLinear* other = linear->quantized();
    if ((other == nullptr) != (quantized == nullptr) ||
        (other != nullptr && other->recipe() != quantized->recipe()))
      return fmt::format("{} and {} have different recipes", first.options().name,
                         linear->options().name);
    if (linear->weight.sizes() != first.weight.sizes())
      return fmt::format("{} and {} have different sizes", first.options().name,
                         linear->options().name);
  }
  if (quantized == nullptr) return first.options().name + " is not quantized";
  const LinearRecipe& recipe = quantized->recipe();
  const bool narrow = dtype == at::kFloat || dtype == at::kBFloat16;
  if (!narrow) return fmt::format("{} is no dtype of a quantized Linear", c10::toString(dtype));
  if (quantized->gemm_ == Gemm::kNative) return "native products are made one by one";
  for (const Operand operand : kOperands) {
    const OperandRecipe& one = recipe.of(operand);
    if (one.format && (one.blocks == Blocks::kTensor || one.is_nvfp4()))
      return "the scale of a whole tensor multiplies the products of one Linear";
    if (device.is_cuda() && recipe.of(operand).format && !recipe.of(operand).is_microscaling())
      return "FP8 products on a GPU are made one by one";
  }
  const Linear::Options& sizes = first.options();
  const bool pairs = sizes.in % 2 == 0 && sizes.out % 2 == 0 && sizes.in > 2 && sizes.out > 2;
  if (dtype == at::kBFloat16 && !device.is_cuda() && emulates_in_bfloat16() &&
      (!ops::multiplies_bfloat16_rows() || !pairs))
    return "products in bfloat16 of these sizes are oneDNN's on this CPU";
  return "";
}

at::Tensor LinearGroup::forward(const at::Tensor& x, const RowGroups& groups,
                                const QuantizedLinear::Prologue& activation) const {
  const std::string reason = obstacle(linears_, x.scalar_type(), x.device());
  DOVETAIL_CHECK(reason.empty(), "{}", reason);
  const LinearRecipe& recipe = linears_[0]->quantized()->recipe();
  if (groups.recorded.defined()) {
    for (const Operand operand : kOperands)
      user_check(!recipe.of(operand).format || recipe.of(operand).is_microscaling(),
                 "{}: FP8 has tensors of each expert, whose sizes change with each step without "
                 "padding. A recorded step needs a microscaling recipe, or "
                 "model.moe.pad_to_capacity = true",
                 linears_[0]->options().name);
  }
  const auto holder = c10::make_intrusive<GroupHolder>();
  holder->activation = activation;
  holder->bias = linears_[0]->options().bias;
  variable_list tensors = {x.contiguous()};
  for (const Linear* linear : linears_) {
    const auto& weight = linear->weight;
    user_check(weight.scalar_type() == x.scalar_type() && weight.device() == x.device(),
               "{}: weight must have x's dtype and device; weight is {}, x is {}",
               linear->options().name, ops::describe(weight), ops::describe(x));
    holder->layers.push_back(linear->quantized()->shared_from_this());
    tensors.push_back(weight);
  }
  if (holder->bias)
    for (const Linear* linear : linears_) tensors.push_back(linear->bias);
  return LinearGroupFunction::apply(at::TensorList(tensors), groups, holder);
}

}  // namespace dovetail::mx
