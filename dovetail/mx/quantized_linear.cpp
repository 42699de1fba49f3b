#include "dovetail/mx/quantized_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/rng.h"
#include "dovetail/mx/float8.h"
#include "dovetail/mx/float8_product.h"
#include "dovetail/mx/last_input.h"
#include "dovetail/mx/operand.h"
#include "dovetail/ops/gemm.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::mx {

namespace {

struct Holder : torch::CustomClassHolder {
  Holder(std::shared_ptr<QuantizedLinear> layer, QuantizedLinear::Prologue prologue)
      : layer(std::move(layer)), prologue(std::move(prologue)) {}
  std::shared_ptr<QuantizedLinear> layer;
  QuantizedLinear::Prologue prologue;
};

at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

std::optional<at::Tensor> optional(const at::Tensor& x) {
  return x.defined() ? std::optional(x) : std::nullopt;
}

/// Returns a @ b times both scales, plus bias, as `dtype`. `options` may transpose a or b, which
/// have the same dtype. Scales are OperandCopies' of a and b.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, ops::GemmOptions options,
                   at::ScalarType dtype, std::array<double, 2> scales) {
  if (scales[0] == 1 && scales[1] == 1) return ops::gemm(a, b, options).to(dtype);
  const at::Tensor bias = std::exchange(options.bias, {});
  if (a.scalar_type() == at::kBFloat16)  // ATen multiplies and adds before it rounds
    return at::addmm(bias.defined() ? bias : at::zeros({}, a.options()),
                     options.transpose_a ? a.t() : a, options.transpose_b ? b.t() : b,
                     bias.defined() ? 1 : 0, scales[0] * scales[1])
        .to(dtype);
  // One after the other, since the product of the scales can underflow in float32.
  at::Tensor y = ops::gemm(a, b, options).mul_(scales[0]).mul_(scales[1]);
  if (bias.defined()) y.add_(bias);
  return y.to(dtype);
}

/// Raises delayed.seen to the largest magnitude of x. `counted_bits` is that magnitude on a CPU.
template <class X>
void see(const DelayedScaling& delayed, const X& x, uint32_t counted_bits) {
  if (delayed.seen.is_cpu()) {
    int32_t& seen = *delayed.seen.mutable_data_ptr<int32_t>();
    seen = std::max(seen, static_cast<int32_t>(counted_bits));
    return;
  }
  if constexpr (std::is_same_v<X, at::Tensor>) {
    if (x.numel() == 0) return;
    at::Tensor seen = delayed.seen;
    at::maximum_out(seen, seen, x.detach().abs().amax().to(at::kFloat).view(at::kInt));
  } else {
    DOVETAIL_CHECK(false, "delayed scaling has no rows that are made");
  }
}

}  // namespace

class QuantizedLinearFunction : public torch::autograd::Function<QuantizedLinearFunction> {
 public:
  /// `prologue_weight`, `prologue_bias`: parameters of the holder's prologue, passed for the
  /// autograd graph. `trains_weight`: the weight's gradient will be requested.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& prologue_weight,
                            const std::optional<at::Tensor>& prologue_bias,
                            const c10::intrusive_ptr<Holder>& holder, bool trains_weight) {
    QuantizedLinear& layer = *holder->layer;
    const ops::RowOperation* prologue = holder->prologue.get();
    const OperandRecipe& recipe = layer.recipe_.activation;
    KeptInput kept;
    kept.by_rows = prologue != nullptr && layer.reads_rows(*prologue, x, weight);
    const at::Tensor input =
        kept.by_rows ? x.contiguous() : as_rows(prologue != nullptr ? prologue->apply(x) : x);
    const bool needs_column =
        recipe.keeps_codes() && trains_weight && prologue == nullptr && !layer.input_stays_;
    kept.column_later = needs_column && layer.leaves_column_to_plan(input);
    const bool keeps_column = needs_column && !kept.column_later;
    if (keeps_column) std::tie(kept.codes, kept.scales) = last_input().find(x, recipe);
    // Codes for FP8 products have another layout than codes for emulated products.
    if (kept.codes.defined() && !recipe.is_microscaling() &&
        (kept.codes.scalar_type() != at::kByte) !=
            layer.multiplies_float8(input, input.size(0), weight))
      kept.codes = kept.scales = at::Tensor();
    const bool makes_column = keeps_column && !kept.codes.defined();
    if (kept.by_rows) kept.x = input;

    const QuantizedLinear::Call call =
        recipe.format ? layer.next_call(Operand::kActivation) : QuantizedLinear::Call{};
    const auto made = operation(
        "dovetail::mx_linear",
        {.reads = {input, weight, bias.value_or(at::Tensor()),
                   prologue_weight.value_or(at::Tensor()), prologue_bias.value_or(at::Tensor())}},
        [holder, call, makes_column, by_rows = kept.by_rows](const Operands& inputs) {
          return multiply(*holder, inputs.reads, call, {.row = true, .kept = makes_column},
                          by_rows);
        });
    if (makes_column) {
      kept.codes = made[1];
      kept.scales = made[2];
      last_input().remember(x, recipe, kept.codes, kept.scales);
    }
    kept.statistics = {made[3], made[4]};
    kept.most = made[5];
    if (!kept.by_rows && !kept.codes.defined() && (trains_weight || prologue != nullptr))
      kept.x = x;
    context->save_for_backward({weight, kept.codes, kept.scales, kept.x, kept.statistics.rstd,
                                kept.statistics.mean, kept.most});
    context->saved_data["holder"] = c10::IValue::make_capsule(holder);
    context->saved_data["by_rows"] = kept.by_rows;
    context->saved_data["column_later"] = kept.column_later;
    context->saved_data["optional_inputs"] = std::vector<int64_t>{
        bias.has_value(), prologue_weight.has_value(), prologue_bias.has_value()};
    context->saved_data["sizes"] = x.sizes();
    auto sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    return made[0].view(sizes);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& weight = saved[0];
    KeptInput kept = {saved[1], saved[2],
                      saved[3], {saved[4], saved[5]},
                      saved[6], context->saved_data["by_rows"].toBool()};
    const auto holder =
        c10::static_intrusive_pointer_cast<Holder>(context->saved_data["holder"].toCapsule());
    const ops::RowOperation* prologue = holder->prologue.get();
    const at::Tensor dy = as_rows(gradients[0]);
    // Undefined inputs have no edge number.
    size_t edge = 2;
    std::vector<bool> wants_optional;
    for (const int64_t there : context->saved_data["optional_inputs"].toIntVector())
      wants_optional.push_back(there != 0 && context->needs_input_grad(edge++));
    const Wanted wanted = {
        .input = context->needs_input_grad(0) || wants_optional[1] || wants_optional[2],
        .weight = context->needs_input_grad(1),
        .bias = wants_optional[0]};

    if (context->saved_data["column_later"].toBool()) {
      if (wanted.weight)
        std::tie(kept.codes, kept.scales) =
            column_codes(as_rows(kept.x), holder->layer->recipe_.activation);
      kept.x.reset();
    }
    // Graph of the prologue, from x to its result, unless the result is made by rows.
    at::Tensor x, input;
    if (kept.x.defined() && !kept.by_rows) {
      const at::AutoGradMode with_grad(prologue != nullptr && wanted.input);
      x = kept.x.detach();
      if (at::GradMode::is_enabled()) x.requires_grad_();
      input = prologue != nullptr ? prologue->apply(x) : x;
    }
    const auto of_prologue =
        kept.by_rows ? prologue->parameters() : ops::RowOperation::Parameters{};
    const at::Tensor read = kept.by_rows                       ? kept.x
                            : input.defined() && wanted.weight ? input.detach()
                                                               : at::Tensor();
    const bool quantizes =
        holder->layer->recipe_.gradient.format && (wanted.input || wanted.weight);
    const auto call =
        quantizes ? holder->layer->next_call(Operand::kGradient) : QuantizedLinear::Call{};
    const std::vector<at::Tensor> inputs = {dy,
                                            weight,
                                            kept.codes,
                                            kept.scales,
                                            read,
                                            kept.statistics.rstd,
                                            kept.statistics.mean,
                                            of_prologue.weight,
                                            of_prologue.bias,
                                            kept.most};
    const std::vector<at::Tensor> made =
        gradient_operations(holder, inputs, call, wanted, kept.by_rows);

    ops::RowOperation::Gradients before = {.x = made[0], .parameters = {made[3], made[4]}};
    if (before.x.defined() && !kept.by_rows && prologue != nullptr)
      before = gradients_of(*prologue, x, input, before.x.view(input.sizes()));
    if (before.x.defined()) before.x = before.x.view(context->saved_data["sizes"].toIntVector());
    return {before.x,     made[1],     made[2], before.parameters.weight, before.parameters.bias,
            at::Tensor(), at::Tensor()};
  }

 private:
  friend class QuantizedLinear;
  /// Tensors that backward reads for x: the column copy, or x itself before the prologue.
  struct KeptInput {
    at::Tensor codes, scales, x;
    ops::RowOperation::Statistics statistics;  ///< statistics of the prologue, if by rows
    at::Tensor most;                           ///< QuantizedLinear::Codes::most
    bool by_rows = false;                      ///< the prologue's result never exists as a whole
    bool column_later = false;                 ///< keep x and let backward make the column copy
  };
  struct Wanted {
    bool input = false, weight = false, bias = false;
  };

  /// Computes forward. `inputs`: x (by rows: before the prologue), weight, bias, the prologue's
  /// weight and bias. Returns y, the kept codes and scales if `request` asks for them, by rows the
  /// prologue's statistics, and QuantizedLinear::Codes::most.
  static std::vector<at::Tensor> multiply(const Holder& holder,
                                          const std::vector<at::Tensor>& inputs,
                                          const QuantizedLinear::Call& call,
                                          const OperandRequest& request, bool by_rows) {
    QuantizedLinear& layer = *holder.layer;
    const at::Tensor &x = inputs[0], &weight = inputs[1], &bias = inputs[2];
    ops::RowOperation::Statistics statistics;
    OperandCopies input;
    std::optional<ops::MadeRows> rows;
    if (by_rows) rows = holder.prologue->with({inputs[3], inputs[4]})->rows(x, statistics);
    if ((rows ? rows->sizes[1] : x.size(-1)) == weight.size(1) &&
        layer.multiplies_float8(x, rows ? rows->sizes[0] : x.size(0), weight)) {
      const QuantizedLinear::CodesRequest wanted{.row = true, .column = request.kept};
      const auto of_x = rows ? layer.float8_codes(Operand::kActivation, *rows, wanted)
                             : layer.float8_codes(Operand::kActivation, x, wanted);
      const auto of_w = layer.float8_codes(Operand::kWeight, weight, {.row = true});
      const LinearRecipe& r = layer.recipe_;
      const at::Tensor y = float8_product(of_x.row, of_x.row_scales, r.activation.blocks, of_w.row,
                                          of_w.row_scales, r.weight.blocks, optional(bias));
      if (!request.kept) return {y, {}, {}, {}, {}, of_x.most};
      return {y, of_x.column, of_x.column_scales, {}, {}, {}};
    }
    const at::ScalarType dtype = emulation_dtype(x, layer.recipe_.activation, layer.recipe_.weight);
    OperandRequest of_input = request;
    of_input.wide = dtype == at::kFloat;
    if (rows) {
      input = layer.quantized(Operand::kActivation, *rows, of_input, call);
    } else if (layer.recipe_.activation.format) {
      input = layer.quantized(Operand::kActivation, x, of_input, call);
    } else {
      input.row = x;
    }
    const int64_t width = input.row.defined() ? input.row.size(-1) : input.row_codes.sizes()[1];
    user_check(width == weight.size(1),
               "{}: weight is {}, but the operation before it gives rows of {}", layer.name_,
               ops::describe(weight), width);
    const OperandCopies of_weight =
        layer.weight_copies(weight, {.row = true, .wide = dtype == at::kFloat});
    at::Tensor y;
    if (layer.gemm_ == Gemm::kNative) {
      y = native_product(input.row_codes, of_weight.row_codes, x.scalar_type(),
                         bias.defined() ? bias.to(x.scalar_type()) : bias);
    } else {
      y = product(
          input.row.to(dtype), of_weight.row.to(dtype),
          {.transpose_b = true, .bias = bias.defined() ? bias.to(dtype).contiguous() : bias},
          x.scalar_type(), {input.row_scale, of_weight.row_scale});
    }
    return {y, input.codes, input.scales, statistics.rstd, statistics.mean, {}};
  }

  /// Computes all gradients of `differentiate` in one operation. A recorded step has one operation
  /// for each product, so that a plan need not hold the operands of both at once. Then dy is
  /// counted where its rows are made.
  static std::vector<at::Tensor> gradient_operations(const c10::intrusive_ptr<Holder>& holder,
                                                     const std::vector<at::Tensor>& inputs,
                                                     const QuantizedLinear::Call& call,
                                                     const Wanted& wanted, bool by_rows) {
    const auto one = [&](const char* name, const Wanted& some,
                         const QuantizedLinear::Call& of_call) {
      Operands operands{.reads = inputs};
      std::vector<at::Tensor>& reads = operands.reads;
      // FP8 products on a GPU need the weight's sizes.
      const OperandRecipe& of_weight = holder->layer->recipe_.weight;
      const bool asks = inputs[0].is_cuda() && of_weight.format && !of_weight.is_microscaling();
      if (!some.input && !asks) reads[1] = at::Tensor();
      if (!some.input) reads[5] = reads[6] = at::Tensor();
      if (!some.weight) reads[2] = reads[3] = reads[9] = at::Tensor();
      if (!some.weight && !(some.input && by_rows)) reads[4] = at::Tensor();
      return operation(name, std::move(operands),
                       [holder, of_call, some, by_rows](const Operands& given) {
                         return differentiate(*holder, given.reads, of_call, some, by_rows);
                       });
    };
    if (!operations_are_recorded() || !wanted.input || !wanted.weight)
      return one("dovetail::mx_linear_gradient", wanted, call);
    const auto of_weight =
        one("dovetail::mx_linear_weight_gradient", {.weight = true, .bias = wanted.bias},
            {.number = call.number, .recorded = true, .counts = false});
    auto made = one("dovetail::mx_linear_input_gradient", {.input = true}, call);
    made[1] = of_weight[1];
    made[2] = of_weight[2];
    return made;
  }

  /// Computes gradients. `inputs`: dy, weight, the kept codes and scales or x, the prologue's
  /// statistics, weight and bias, and QuantizedLinear::Codes::most of x. By rows, x is the
  /// prologue's input, otherwise its result. Returns the gradients of x, weight, bias and, by rows,
  /// of the prologue's parameters. Without rows, the gradient of x is the gradient of the
  /// prologue's result.
  static std::vector<at::Tensor> differentiate(const Holder& holder,
                                               const std::vector<at::Tensor>& inputs,
                                               const QuantizedLinear::Call& call,
                                               const Wanted& wanted, bool by_rows) {
    QuantizedLinear& layer = *holder.layer;
    const at::Tensor &dy = inputs[0], &weight = inputs[1];
    const at::ScalarType made = dy.scalar_type();
    const auto prologue = by_rows ? holder.prologue->with({inputs[7], inputs[8]}) : nullptr;
    // Each operand is freed after its product, since operands are as large as activations.
    at::Tensor dinput, dweight, dbias;
    const auto rows_of_x = [&] {
      ops::RowOperation::Statistics known;
      return prologue->rows(inputs[4], known);
    };
    const auto with_prologue = [&]() -> std::vector<at::Tensor> {
      if (!dinput.defined() || !by_rows) return {dinput, dweight, dbias, {}, {}};
      const auto before = prologue->gradients(inputs[4], {inputs[5], inputs[6]}, dinput);
      return {before.x, dweight, dbias, before.parameters.weight, before.parameters.bias};
    };
    if ((wanted.input || wanted.weight) && layer.multiplies_float8(dy, dy.size(0), weight)) {
      const LinearRecipe& r = layer.recipe_;
      const auto codes = layer.float8_codes(Operand::kGradient, dy,
                                            {.row = wanted.input, .column = wanted.weight});
      if (wanted.weight) {
        QuantizedLinear::Codes of_x{.row = {},
                                    .column = inputs[2],
                                    .row_scales = {},
                                    .column_scales = inputs[3],
                                    .most = {}};
        const QuantizedLinear::CodesRequest column{.column = true, .most = inputs[9]};
        if (!of_x.column.defined())
          of_x = by_rows ? layer.float8_codes(Operand::kActivation, rows_of_x(), column)
                         : layer.float8_codes(Operand::kActivation, as_rows(inputs[4]), column);
        dweight = float8_product(codes.column, codes.column_scales, r.gradient.blocks, of_x.column,
                                 of_x.column_scales, r.activation.blocks);
      }
      if (wanted.input) {
        const auto of_weight = layer.float8_codes(Operand::kWeight, weight, {.column = true});
        dinput = float8_product(codes.row, codes.row_scales, r.gradient.blocks, of_weight.column,
                                of_weight.column_scales, r.weight.blocks);
      }
      if (wanted.bias) dbias = ops::column_sums(dy);
      return with_prologue();
    }
    const LinearRecipe& recipe = layer.recipe_;
    const at::ScalarType of_dx = emulation_dtype(dy, recipe.gradient, recipe.weight),
                         of_dw = emulation_dtype(dy, recipe.gradient, recipe.activation);
    OperandCopies of_dy = gradient_copies(layer, dy,
                                          {.row = wanted.input,
                                           .column = wanted.weight,
                                           .wide = of_dx == at::kFloat && of_dw == at::kFloat},
                                          call);
    if (wanted.weight) {
      const OperandCopies of_x = input_columns(
          layer, prologue.get(), {inputs[2], inputs[3], inputs[4], {}, {}, by_rows}, of_dw);
      dweight = layer.gemm_ == Gemm::kNative
                    ? native_product(of_dy.column_codes, of_x.column_codes, made)
                    : product(of_dy.column.to(of_dw), of_x.column.to(of_dw), {.transpose_a = true},
                              made, {of_dy.column_scale, of_x.column_scale});
    }
    of_dy.column.reset();
    of_dy.column_codes = {};
    if (wanted.input) {
      const OperandCopies of_weight =
          layer.weight_copies(weight, {.column = true, .wide = of_dx == at::kFloat});
      dinput = layer.gemm_ == Gemm::kNative
                   ? native_product(of_dy.row_codes, of_weight.column_codes, made)
                   : product(of_dy.row.to(of_dx), of_weight.column.to(of_dx), {}, made,
                             {of_dy.row_scale, of_weight.column_scale});
    }
    of_dy = {};
    if (wanted.bias) dbias = ops::column_sums(dy);
    return with_prologue();
  }

  static OperandCopies gradient_copies(QuantizedLinear& layer, const at::Tensor& dy,
                                       OperandRequest request, const QuantizedLinear::Call& call) {
    OperandCopies copies;
    if (layer.recipe_.gradient.format && (request.row || request.column)) {
      request.seed = mix_seed(layer.seed_, call.number);
      return layer.quantized(Operand::kGradient, dy, request, call);
    }
    copies.row = copies.column = dy;
    return copies;
  }

  /// Makes the column copy for the weight's gradient. Unless made by rows, kept.x is the prologue's
  /// result.
  static OperandCopies input_columns(QuantizedLinear& layer, const ops::RowOperation* prologue,
                                     const KeptInput& kept, at::ScalarType dtype) {
    const OperandRecipe& recipe = layer.recipe_.activation;
    OperandCopies copies;
    if (kept.codes.defined() && layer.gemm_ == Gemm::kNative) {
      copies.column_codes = MXTensor(kept.codes, kept.scales, *recipe.format, Orientation::kColumn);
    } else if (kept.codes.defined()) {
      copies = dequantize_kept(kept.codes, kept.scales, recipe, dtype);
    } else if (kept.by_rows) {
      ops::RowOperation::Statistics known;
      copies = layer.requantized_activation(prologue->rows(kept.x, known), dtype);
    } else if (recipe.format) {
      copies = layer.requantized_activation(as_rows(kept.x), dtype);
    } else {
      copies.column = as_rows(kept.x);
    }
    return copies;
  }

  /// Computes the gradients of input = prologue(x) with autograd.
  static ops::RowOperation::Gradients gradients_of(const ops::RowOperation& prologue,
                                                   const at::Tensor& x, const at::Tensor& input,
                                                   const at::Tensor& dinput) {
    const ops::RowOperation::Parameters parameters = prologue.parameters();
    torch::autograd::variable_list leaves = {x};
    for (const at::Tensor* parameter : {&parameters.weight, &parameters.bias}) {
      if (parameter->defined() && parameter->requires_grad()) leaves.push_back(*parameter);
    }
    const auto found = torch::autograd::grad({input}, leaves, {dinput});
    ops::RowOperation::Gradients result = {.x = found[0], .parameters = {}};
    size_t next = 1;
    if (parameters.weight.defined() && parameters.weight.requires_grad())
      result.parameters.weight = found[next++];
    if (parameters.bias.defined() && parameters.bias.requires_grad())
      result.parameters.bias = found[next];
    return result;
  }
};

QuantizedLinear::QuantizedLinear(const LinearRecipe& recipe, std::string name, Gemm gemm,
                                 bool input_stays)
    : recipe_(recipe), name_(std::move(name)), gemm_(gemm), input_stays_(input_stays) {}

void QuantizedLinear::begin_step(uint64_t seed, bool count) {
  seed_ = seed;
  count_ = count;
  calls_ = {};
  statistics_ = {};
  for (auto& of_operand : recorded_) of_operand.clear();
}

LinearStatistics QuantizedLinear::statistics() const {
  LinearStatistics sums = statistics_;
  for (const Operand operand : kOperands)
    for (const Statistics& of_call : recorded_[static_cast<size_t>(operand)])
      sums.of(operand).add(of_call);
  return sums;
}

bool QuantizedLinear::leaves_column_to_plan(const at::Tensor& x) const {
  const OperandRecipe& recipe = recipe_.activation;
  return operations_are_recorded() && gemm_ == Gemm::kEmulated && recipe.blocks == Blocks::k1x32 &&
         x.size(0) % kBlock == 0 && emulation_dtype(x, recipe_.gradient, recipe) == x.scalar_type();
}

QuantizedLinear::Call QuantizedLinear::next_call(Operand operand) {
  return {.number = calls_[static_cast<size_t>(operand)]++, .recorded = operations_are_recorded()};
}

const DelayedScaling& QuantizedLinear::delayed(Operand operand, at::Device device) {
  DelayedScaling& found = delayed_[static_cast<size_t>(operand)];
  const OperandRecipe& how = recipe_.of(operand);
  if (how.history == 0) return found;
  if (!found.seen.defined()) found = AmaxHistories({*how.format}, how.history, device).of(0);
  DOVETAIL_CHECK(found.seen.device() == device, "{}: magnitudes of {} are on {}, x is on {}", name_,
                 mx::name(operand), found.seen.device().str(), device.str());
  return found;
}

template <class X>
OperandCopies QuantizedLinear::quantized(Operand operand, const X& x, OperandRequest request,
                                         const Call& call) {
  const OperandRecipe& how = recipe_.of(operand);
  request.count = count_ && call.counts;
  request.as_codes = gemm_ == Gemm::kNative;
  if (how.history > 0) request.amax = delayed(operand, x.device()).amax;
  OperandCopies copies = quantize_operand(x, how, request);
  if (how.history > 0) see(delayed(operand, x.device()), x, copies.statistics.amax_bits);
  record(operand, request.row, call, copies.statistics);
  return copies;
}

void QuantizedLinear::record(Operand operand, bool row, const Call& call,
                             const Statistics& statistics) {
  if (operand == Operand::kWeight) {
    if (row) statistics_.weight = statistics;
    return;
  }
  if (!call.counts) return;
  if (call.recorded) {
    auto& of_calls = recorded_[static_cast<size_t>(operand)];
    if (of_calls.size() <= call.number) of_calls.resize(call.number + 1);
    of_calls[call.number] = statistics;
  } else {
    statistics_.of(operand).add(statistics);
  }
}

template <class X>
OperandCopies QuantizedLinear::requantized_activation(const X& x, at::ScalarType dtype) {
  return quantize_operand(x, recipe_.activation,
                          {.column = true,
                           .as_codes = gemm_ == Gemm::kNative,
                           .amax = delayed(Operand::kActivation, x.device()).amax,
                           .count = false,
                           .wide = dtype == at::kFloat});
}

OperandCopies QuantizedLinear::weight_copies(const at::Tensor& weight,
                                             const OperandRequest& request) {
  if (recipe_.weight.format) return quantized(Operand::kWeight, weight, request, {});
  OperandCopies copies;
  copies.row = copies.column = weight;
  return copies;
}

void QuantizedLinear::check(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const Prologue& prologue) const {
  const auto check = [&](bool fine, const char* what, const at::Tensor& tensor) {
    user_check(fine, "{}: {}; it is {}", name_, what, ops::describe(tensor));
  };
  check(weight.dim() == 2, "weight must be (out, in)", weight);
  check(x.dim() >= 1, "x must be (..., in)", x);
  check(x.scalar_type() != at::kHalf,
        "float16 has less range than the scales of a quantized Linear. Convert x to bfloat16, or "
        "set the dtype of torch.autocast to bfloat16",
        x);
  check(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
        "a quantized Linear computes in float32 or bfloat16; convert x", x);
  check(weight.scalar_type() == x.scalar_type() && weight.device() == x.device(),
        "weight must have x's dtype and device", weight);
  check(x.is_cpu() || x.is_cuda() || x.is_meta(), "x must be on the CPU or a GPU", x);
  check(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
        "bias must be (out)", bias);
  check(prologue != nullptr || x.size(-1) == weight.size(1),
        "the last size of x must be weight's second", x);
  const bool nvfp4 = std::ranges::any_of(
      kOperands, [&](Operand operand) { return recipe_.of(operand).is_nvfp4(); });
  check(!nvfp4 || !x.is_cuda(),
        "NVFP4 is implemented on the CPU; use another recipe (mxfp4), or move model and x there",
        x);
  if (gemm_ != Gemm::kNative) return;
  std::string obstacle = native_obstacle(recipe_, weight.size(1), weight.size(0));
  if (obstacle.empty() && !x.is_meta()) obstacle = native_obstacle(native_device(x.device()));
  if (!obstacle.empty())
    throw UserError(fmt::format("{}: {}", name_, obstacle), "use emulated products");
}

at::Tensor QuantizedLinear::forward(const at::Tensor& x, const at::Tensor& weight,
                                    const at::Tensor& bias, const Prologue& prologue) {
  check(x, weight, bias, prologue);
  if (x.is_meta()) return at::linear(prologue != nullptr ? prologue->apply(x) : x, weight, bias);
  const ops::RowOperation::Parameters beside =
      prologue != nullptr ? prologue->parameters() : ops::RowOperation::Parameters{};
  return QuantizedLinearFunction::apply(x, weight, optional(bias), optional(beside.weight),
                                        optional(beside.bias),
                                        c10::make_intrusive<Holder>(shared_from_this(), prologue),
                                        at::GradMode::is_enabled() && weight.requires_grad());
}

QuantizedLinear::Products QuantizedLinear::multiply(const at::Tensor& x, const at::Tensor& weight,
                                                    const at::Tensor& bias, bool keeps_column) {
  const Holder holder(shared_from_this(), nullptr);
  const Call call = recipe_.activation.format ? next_call(Operand::kActivation) : Call{};
  const auto made = QuantizedLinearFunction::multiply(holder, {x, weight, bias, {}, {}}, call,
                                                      {.row = true, .kept = keeps_column}, false);
  if (!keeps_column) return {made[0], {}, {}};
  if (!multiplies_float8(x, x.size(0), weight)) return {made[0], made[1], made[2]};
  const bool by_tensor = kept_scales(recipe_.activation).block == 0;
  return {made[0], made[1].view(at::kByte).view(x.sizes()),
          by_tensor ? made[2].view(at::IntArrayRef{}) : made[2].t()};
}

KeptScales kept_scales(const OperandRecipe& recipe) {
  if (recipe.is_microscaling()) return {};
  return {.dtype = at::kFloat, .block = recipe.blocks == Blocks::kTensor ? 0 : kFloat8Block};
}

QuantizedLinear::Gradients QuantizedLinear::differentiate(const at::Tensor& dy,
                                                          const at::Tensor& weight,
                                                          const at::Tensor& kept,
                                                          const at::Tensor& scales,
                                                          const WantedGradients& wanted) {
  const Holder holder(shared_from_this(), nullptr);
  const bool quantizes = recipe_.gradient.format && (wanted.x || wanted.weight);
  const Call call = quantizes ? next_call(Operand::kGradient) : Call{};
  at::Tensor codes, codes_scales, x;
  if (wanted.weight && !recipe_.activation.keeps_codes()) {
    x = kept;
  } else if (wanted.weight && multiplies_float8(dy, dy.size(0), weight)) {
    codes = kept.view({weight.size(1), dy.size(0)}).view(float8_type(*recipe_.activation.format));
    codes_scales = scales.dim() == 0 ? scales.view({1}) : scales.t();
  } else if (wanted.weight) {
    codes = kept;
    codes_scales = scales;
  }
  const auto made = QuantizedLinearFunction::differentiate(
      holder, {dy, weight, codes, codes_scales, x, {}, {}, {}, {}, {}}, call,
      {.input = wanted.x, .weight = wanted.weight, .bias = wanted.bias}, false);
  return {made[0], made[1], made[2]};
}

}  // namespace dovetail::mx
