#include "dovetail/mx/linear_products.h"

#include <ATen/ATen.h>

#include <array>
#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/mx/float8_product.h"
#include "dovetail/ops/gemm.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::mx {

namespace {

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

}  // namespace

std::vector<at::Tensor> LinearProducts::multiply(const std::vector<at::Tensor>& inputs,
                                                 const QuantizedLinear::Call& call,
                                                 const OperandRequest& request,
                                                 bool by_rows) const {
  const at::Tensor &x = inputs[0], &weight = inputs[1], &bias = inputs[2];
  ops::RowOperation::Statistics statistics;
  OperandCopies input;
  std::optional<ops::MadeRows> rows;
  if (by_rows) rows = prologue->with({inputs[3], inputs[4]})->rows(x, statistics);
  if ((rows ? rows->sizes[1] : x.size(-1)) == weight.size(1) &&
      layer->multiplies_float8(x, rows ? rows->sizes[0] : x.size(0), weight)) {
    const QuantizedLinear::CodesRequest wanted{.row = true, .column = request.kept};
    const auto of_x = rows ? layer->float8_codes(Operand::kActivation, *rows, wanted)
                           : layer->float8_codes(Operand::kActivation, x, wanted);
    const auto of_w = layer->float8_codes(Operand::kWeight, weight, {.row = true});
    const LinearRecipe& r = layer->recipe_;
    const at::Tensor y = float8_product(of_x.row, of_x.row_scales, r.activation.blocks, of_w.row,
                                        of_w.row_scales, r.weight.blocks, optional(bias));
    if (!request.kept) return {y, {}, {}, {}, {}, of_x.most};
    return {y, of_x.column, of_x.column_scales, {}, {}, {}};
  }
  const at::ScalarType dtype = emulation_dtype(x, layer->recipe_.activation, layer->recipe_.weight);
  OperandRequest of_input = request;
  of_input.wide = dtype == at::kFloat;
  if (rows) {
    input = layer->quantized(Operand::kActivation, *rows, of_input, call);
  } else if (layer->recipe_.activation.format) {
    input = layer->quantized(Operand::kActivation, x, of_input, call);
  } else {
    input.row = x;
  }
  const int64_t width = input.row.defined() ? input.row.size(-1) : input.row_codes.sizes()[1];
  user_check(width == weight.size(1),
             "{}: weight is {}, but the operation before it gives rows of {}", layer->name_,
             ops::describe(weight), width);
  const OperandCopies of_weight =
      layer->weight_copies(weight, {.row = true, .wide = dtype == at::kFloat});
  at::Tensor y;
  if (layer->gemm_ == Gemm::kNative) {
    y = native_product(input.row_codes, of_weight.row_codes, x.scalar_type(),
                       bias.defined() ? bias.to(x.scalar_type()) : bias);
  } else {
    y = product(input.row.to(dtype), of_weight.row.to(dtype),
                {.transpose_b = true, .bias = bias.defined() ? bias.to(dtype).contiguous() : bias},
                x.scalar_type(), {input.row_scale, of_weight.row_scale});
  }
  return {y, input.codes, input.scales, statistics.rstd, statistics.mean, {}};
}

std::vector<at::Tensor> LinearProducts::differentiate(
    const std::vector<at::Tensor>& inputs, const QuantizedLinear::Call& call,
    const QuantizedLinear::WantedGradients& wanted, bool by_rows) const {
  const at::Tensor &dy = inputs[0], &weight = inputs[1];
  const at::ScalarType made = dy.scalar_type();
  const auto before = by_rows ? prologue->with({inputs[7], inputs[8]}) : nullptr;
  // Each operand is freed after its product, since operands are as large as activations.
  at::Tensor dinput, dweight, dbias;
  const auto rows_of_x = [&] {
    ops::RowOperation::Statistics known;
    return before->rows(inputs[4], known);
  };
  const auto with_prologue = [&]() -> std::vector<at::Tensor> {
    if (!dinput.defined() || !by_rows) return {dinput, dweight, dbias, {}, {}};
    const auto gradients = before->gradients(inputs[4], {inputs[5], inputs[6]}, dinput);
    return {gradients.x, dweight, dbias, gradients.parameters.weight, gradients.parameters.bias};
  };
  if ((wanted.x || wanted.weight) && layer->multiplies_float8(dy, dy.size(0), weight)) {
    const LinearRecipe& r = layer->recipe_;
    const auto codes =
        layer->float8_codes(Operand::kGradient, dy, {.row = wanted.x, .column = wanted.weight});
    if (wanted.weight) {
      QuantizedLinear::Codes of_x{
          .row = {}, .column = inputs[2], .row_scales = {}, .column_scales = inputs[3], .most = {}};
      const QuantizedLinear::CodesRequest column{.column = true, .most = inputs[9]};
      if (!of_x.column.defined())
        of_x = by_rows ? layer->float8_codes(Operand::kActivation, rows_of_x(), column)
                       : layer->float8_codes(Operand::kActivation, as_rows(inputs[4]), column);
      dweight = float8_product(codes.column, codes.column_scales, r.gradient.blocks, of_x.column,
                               of_x.column_scales, r.activation.blocks);
    }
    if (wanted.x) {
      const auto of_weight = layer->float8_codes(Operand::kWeight, weight, {.column = true});
      dinput = float8_product(codes.row, codes.row_scales, r.gradient.blocks, of_weight.column,
                              of_weight.column_scales, r.weight.blocks);
    }
    if (wanted.bias) dbias = ops::column_sums(dy);
    return with_prologue();
  }
  const LinearRecipe& recipe = layer->recipe_;
  const at::ScalarType of_dx = emulation_dtype(dy, recipe.gradient, recipe.weight),
                       of_dw = emulation_dtype(dy, recipe.gradient, recipe.activation);
  OperandCopies of_dy = gradient_copies(dy,
                                        {.row = wanted.x,
                                         .column = wanted.weight,
                                         .wide = of_dx == at::kFloat && of_dw == at::kFloat},
                                        call);
  if (wanted.weight) {
    const OperandCopies of_x = input_columns(inputs, before.get(), of_dw);
    dweight = layer->gemm_ == Gemm::kNative
                  ? native_product(of_dy.column_codes, of_x.column_codes, made)
                  : product(of_dy.column.to(of_dw), of_x.column.to(of_dw), {.transpose_a = true},
                            made, {of_dy.column_scale, of_x.column_scale});
  }
  of_dy.column.reset();
  of_dy.column_codes = {};
  if (wanted.x) {
    const OperandCopies of_weight =
        layer->weight_copies(weight, {.column = true, .wide = of_dx == at::kFloat});
    dinput = layer->gemm_ == Gemm::kNative
                 ? native_product(of_dy.row_codes, of_weight.column_codes, made)
                 : product(of_dy.row.to(of_dx), of_weight.column.to(of_dx), {}, made,
                           {of_dy.row_scale, of_weight.column_scale});
  }
  of_dy = {};
  if (wanted.bias) dbias = ops::column_sums(dy);
  return with_prologue();
}

OperandCopies LinearProducts::gradient_copies(const at::Tensor& dy, OperandRequest request,
                                              const QuantizedLinear::Call& call) const {
  OperandCopies copies;
  if (layer->recipe_.gradient.format && (request.row || request.column)) {
    request.seed = mix_seed(layer->seed_, call.number);
    return layer->quantized(Operand::kGradient, dy, request, call);
  }
  copies.row = copies.column = dy;
  return copies;
}

OperandCopies LinearProducts::input_columns(const std::vector<at::Tensor>& inputs,
                                            const ops::RowOperation* before,
                                            at::ScalarType dtype) const {
  const at::Tensor &codes = inputs[2], &scales = inputs[3], &x = inputs[4];
  const OperandRecipe& recipe = layer->recipe_.activation;
  OperandCopies copies;
  if (codes.defined() && layer->gemm_ == Gemm::kNative) {
    copies.column_codes = MXTensor(codes, scales, *recipe.format, Orientation::kColumn);
  } else if (codes.defined()) {
    copies = dequantize_kept(codes, scales, recipe, dtype);
  } else if (before != nullptr) {
    ops::RowOperation::Statistics known;
    copies = layer->requantized_activation(before->rows(x, known), dtype);
  } else if (recipe.format) {
    copies = layer->requantized_activation(as_rows(x), dtype);
  } else {
    copies.column = as_rows(x);
  }
  return copies;
}

}  // namespace dovetail::mx
