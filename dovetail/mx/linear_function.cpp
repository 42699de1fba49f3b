#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <tuple>
#include <utility>

#include "dovetail/base/operation.h"
#include "dovetail/mx/last_input.h"
#include "dovetail/mx/linear_products.h"
#include "dovetail/mx/operand.h"
#include "dovetail/mx/quantized_linear.h"

namespace dovetail::mx {

/// Autograd of `LinearProducts`.
class QuantizedLinearFunction : public torch::autograd::Function<QuantizedLinearFunction> {
 public:
  /// `prologue_weight`, `prologue_bias`: parameters of the prologue, passed for the
  /// autograd graph. `trains_weight`: the weight's gradient will be requested.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& prologue_weight,
                            const std::optional<at::Tensor>& prologue_bias,
                            const c10::intrusive_ptr<LinearProducts>& products,
                            bool trains_weight) {
    QuantizedLinear& layer = *products->layer;
    const ops::RowOperation* prologue = products->prologue.get();
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
        [products, call, makes_column, by_rows = kept.by_rows](const Operands& inputs) {
          return products->multiply(inputs.reads, call, {.row = true, .kept = makes_column},
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
    context->saved_data["products"] = c10::IValue::make_capsule(products);
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
    const auto products = c10::static_intrusive_pointer_cast<LinearProducts>(
        context->saved_data["products"].toCapsule());
    const ops::RowOperation* prologue = products->prologue.get();
    const at::Tensor dy = as_rows(gradients[0]);
    // Undefined inputs have no edge number.
    size_t edge = 2;
    std::vector<bool> wants_optional;
    for (const int64_t there : context->saved_data["optional_inputs"].toIntVector())
      wants_optional.push_back(there != 0 && context->needs_input_grad(edge++));
    const QuantizedLinear::WantedGradients wanted = {
        .x = context->needs_input_grad(0) || wants_optional[1] || wants_optional[2],
        .weight = context->needs_input_grad(1),
        .bias = wants_optional[0]};

    if (context->saved_data["column_later"].toBool()) {
      if (wanted.weight)
        std::tie(kept.codes, kept.scales) =
            column_codes(as_rows(kept.x), products->layer->recipe_.activation);
      kept.x.reset();
    }
    // Graph of the prologue, from x to its result, unless the result is made by rows.
    at::Tensor x, input;
    if (kept.x.defined() && !kept.by_rows) {
      const at::AutoGradMode with_grad(prologue != nullptr && wanted.x);
      x = kept.x.detach();
      if (at::GradMode::is_enabled()) x.requires_grad_();
      input = prologue != nullptr ? prologue->apply(x) : x;
    }
    const auto of_prologue =
        kept.by_rows ? prologue->parameters() : ops::RowOperation::Parameters{};
    const at::Tensor read = kept.by_rows                       ? kept.x
                            : input.defined() && wanted.weight ? input.detach()
                                                               : at::Tensor();
    const bool quantizes = products->layer->recipe_.gradient.format && (wanted.x || wanted.weight);
    const auto call =
        quantizes ? products->layer->next_call(Operand::kGradient) : QuantizedLinear::Call{};
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
        gradient_operations(products, inputs, call, wanted, kept.by_rows);

    ops::RowOperation::Gradients before = {.x = made[0], .parameters = {made[3], made[4]}};
    if (before.x.defined() && !kept.by_rows && prologue != nullptr)
      before = gradients_of(*prologue, x, input, before.x.view(input.sizes()));
    if (before.x.defined()) before.x = before.x.view(context->saved_data["sizes"].toIntVector());
    return {before.x,     made[1],     made[2], before.parameters.weight, before.parameters.bias,
            at::Tensor(), at::Tensor()};
  }

 private:
  /// Tensors that backward reads for x: the column copy, or x itself before the prologue.
  struct KeptInput {
    at::Tensor codes, scales, x;
    ops::RowOperation::Statistics statistics;  ///< statistics of the prologue, if by rows
    at::Tensor most;                           ///< QuantizedLinear::Codes::most
    bool by_rows = false;                      ///< the prologue's result never exists as a whole
    bool column_later = false;                 ///< keep x and let backward make the column copy
  };

  /// Computes all gradients of `LinearProducts::differentiate` in one operation. A recorded step
  /// has one operation for each product, so that a plan need not hold the operands of both at once.
  /// Then dy is counted where its rows are made.
  static std::vector<at::Tensor> gradient_operations(
      const c10::intrusive_ptr<LinearProducts>& products, const std::vector<at::Tensor>& inputs,
      const QuantizedLinear::Call& call, const QuantizedLinear::WantedGradients& wanted,
      bool by_rows) {
    const auto one = [&](const char* name, const QuantizedLinear::WantedGradients& some,
                         const QuantizedLinear::Call& of_call) {
      Operands operands{.reads = inputs};
      std::vector<at::Tensor>& reads = operands.reads;
      // FP8 products on a GPU need the weight's sizes.
      const OperandRecipe& of_weight = products->layer->recipe().weight;
      const bool asks = inputs[0].is_cuda() && of_weight.format && !of_weight.is_microscaling();
      if (!some.x && !asks) reads[1] = at::Tensor();
      if (!some.x) reads[5] = reads[6] = at::Tensor();
      if (!some.weight) reads[2] = reads[3] = reads[9] = at::Tensor();
      if (!some.weight && !(some.x && by_rows)) reads[4] = at::Tensor();
      return operation(name, std::move(operands),
                       [products, of_call, some, by_rows](const Operands& given) {
                         return products->differentiate(given.reads, of_call, some, by_rows);
                       });
    };
    if (!operations_are_recorded() || !wanted.x || !wanted.weight)
      return one("dovetail::mx_linear_gradient", wanted, call);
    const auto of_weight =
        one("dovetail::mx_linear_weight_gradient", {.weight = true, .bias = wanted.bias},
            {.number = call.number, .recorded = true, .counts = false});
    auto made = one("dovetail::mx_linear_input_gradient", {.x = true}, call);
    made[1] = of_weight[1];
    made[2] = of_weight[2];
    return made;
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

at::Tensor QuantizedLinear::forward(const at::Tensor& x, const at::Tensor& weight,
                                    const at::Tensor& bias, const Prologue& prologue) {
  check(x, weight, bias, prologue);
  if (x.is_meta()) return at::linear(prologue != nullptr ? prologue->apply(x) : x, weight, bias);
  const ops::RowOperation::Parameters beside =
      prologue != nullptr ? prologue->parameters() : ops::RowOperation::Parameters{};
  return QuantizedLinearFunction::apply(
      x, weight, optional(bias), optional(beside.weight), optional(beside.bias),
      c10::make_intrusive<LinearProducts>(shared_from_this(), prologue),
      at::GradMode::is_enabled() && weight.requires_grad());
}

}  // namespace dovetail::mx
