#include "dovetail/mx/operand.h"

#include <ATen/ATen.h>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/rng.h"
#include "dovetail/mx/float8.h"
#include "dovetail/mx/nvfp4.h"
#include "dovetail/mx/quantize.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::mx {

namespace {

/// Makes the copies by a microscaling recipe. x is a tensor or MadeRows.
template <class X>
OperandCopies quantize_microscaling(const X& x, const OperandRecipe& recipe,
                                    const OperandRequest& request) {
  QuantizeSpec spec = {.format = *recipe.format,
                       .scale_mode = recipe.scale_mode,
                       .rounding = recipe.rounding,
                       .seed = request.seed};
  spec.count = request.count;
  spec.row_values = spec.square_values = !request.as_codes;
  spec.column_values = !request.kept && !request.as_codes;
  if (recipe.blocks == Blocks::k32x32) {
    spec.copies = Copies::kSquare;
  } else if (request.column || request.kept) {
    spec.copies = request.row ? Copies::kRowAndColumn : Copies::kColumn;
  }
  const Quantized made = quantize(x, spec);
  if (made.square_values.defined())
    return {made.square_values, made.square_values, {}, {}, made.square_statistics};
  return {made.row_values,
          made.column_values,
          made.column.codes(),
          made.column.scales(),
          request.row ? made.row_statistics : made.column_statistics,
          made.row,
          made.column};
}

Float8Blocks float8_blocks(const OperandRecipe& recipe, bool along_rows) {
  if (recipe.blocks == Blocks::kTensor) return Float8Blocks::kTensor;
  if (recipe.blocks == Blocks::k128x128) return Float8Blocks::kSquare;
  return along_rows ? Float8Blocks::kRow : Float8Blocks::kColumn;
}

OperandCopies quantize_float8(const at::Tensor& x, const OperandRecipe& recipe,
                              const OperandRequest& request) {
  Float8Spec spec = {
      .format = *recipe.format, .power_of_two = !recipe.float32_scales, .amax = request.amax};
  const auto make = [&](bool along_rows, bool values) {
    spec.blocks = float8_blocks(recipe, along_rows);
    spec.values = values;
    return quantize_float8(x, spec);
  };
  OperandCopies copies;
  if (request.row) {
    const Float8 made = make(true, true);
    copies.row = made.values;
    copies.statistics = made.statistics;
  }
  if (request.column && request.row && recipe.blocks != Blocks::k1x128) {
    copies.column = copies.row;
  } else if (request.column) {
    const Float8 made = make(false, true);
    copies.column = made.values;
    if (!request.row) copies.statistics = made.statistics;
  }
  if (request.kept) {
    const Float8 made = make(false, false);
    copies.codes = made.tensor.codes;
    copies.scales = made.tensor.scales;
  }
  return copies;
}

OperandCopies quantize_nvfp4(const at::Tensor& x, const OperandRecipe& recipe,
                             const OperandRequest& request) {
  DOVETAIL_CHECK(!request.kept && !request.as_codes, "NVFP4 makes numbers");
  Nvfp4Spec spec = {.rounding = recipe.rounding, .seed = request.seed, .values = true};
  OperandCopies copies;
  if (recipe.blocks == Blocks::k16x16) {
    spec.blocks = Nvfp4Blocks::kSquare;
    const Nvfp4 made = quantize_nvfp4(x, spec);
    copies.row = copies.column = made.values;
    copies.row_scale = copies.column_scale = made.tensor.tensor_scale;
    copies.statistics = made.statistics;
    return copies;
  }
  if (request.row) {
    const Nvfp4 made = quantize_nvfp4(x, spec);
    copies.row = made.values;
    copies.row_scale = made.tensor.tensor_scale;
    copies.statistics = made.statistics;
  }
  if (request.column) {
    spec.blocks = Nvfp4Blocks::kColumn;
    // The copies round independently.
    spec.seed = mix_seed(request.seed, 1);
    const Nvfp4 made = quantize_nvfp4(recipe.hadamard ? random_hadamard(x) : x, spec);
    copies.column = made.values;
    copies.column_scale = made.tensor.tensor_scale;
    if (!request.row) copies.statistics = made.statistics;
  }
  return copies;
}

}  // namespace

OperandCopies quantize_operand(const at::Tensor& x, const OperandRecipe& recipe,
                               const OperandRequest& request) {
  if (recipe.is_nvfp4()) return quantize_nvfp4(x, recipe, request);
  return recipe.is_microscaling() ? quantize_microscaling(x, recipe, request)
                                  : quantize_float8(x, recipe, request);
}

OperandCopies quantize_operand(const ops::MadeRows& x, const OperandRecipe& recipe,
                               const OperandRequest& request) {
  DOVETAIL_CHECK(recipe.is_microscaling(), "{} is not read by rows", name(*recipe.format));
  return quantize_microscaling(x, recipe, request);
}

at::Tensor dequantize_kept(const at::Tensor& codes, const at::Tensor& scales,
                           const OperandRecipe& recipe, at::ScalarType dtype) {
  if (recipe.is_microscaling())
    return dequantize(MXTensor(codes, scales, *recipe.format, Orientation::kColumn), dtype);
  return dequantize(Float8Tensor{codes, scales, *recipe.format, float8_blocks(recipe, false)},
                    dtype);
}

bool emulates_in_bfloat16() {
  return has_bfloat16_instructions() && ops::simd_level() == ops::SimdLevel::kAvx512;
}

at::ScalarType emulation_dtype(const at::Tensor& x, const OperandRecipe& a,
                               const OperandRecipe& b) {
  const bool instructions = x.is_cuda() || emulates_in_bfloat16();
  const bool exact = !a.float32_scales && !b.float32_scales && !a.is_nvfp4() && !b.is_nvfp4();
  return instructions && exact && x.scalar_type() == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

}  // namespace dovetail::mx
