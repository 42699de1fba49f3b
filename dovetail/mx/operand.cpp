#include "dovetail/mx/operand.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/rng.h"
#include "dovetail/mx/float8.h"
#include "dovetail/mx/nvfp4.h"
#include "dovetail/mx/quantize.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::mx {

namespace {

QuantizeSpec spec_of(const OperandRecipe& recipe, const OperandRequest& request) {
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
  return spec;
}

/// Makes the copies by a microscaling recipe. x is a tensor or MadeRows.
template <class X>
OperandCopies quantize_microscaling(const X& x, const OperandRecipe& recipe,
                                    const OperandRequest& request) {
  const QuantizeSpec spec = spec_of(recipe, request);
  const Quantized made = quantize(x, spec);
  if (made.square_values.defined())
    return {.row = made.square_values,
            .column = made.square_values,
            .statistics = made.square_statistics};
  return {.row = made.row_values,
          .column = made.column_values,
          .codes = made.column.codes(),
          .scales = made.column.scales(),
          .statistics = request.row ? made.row_statistics : made.column_statistics,
          .row_codes = made.row,
          .column_codes = made.column};
}

Float8Blocks float8_blocks(const OperandRecipe& recipe, bool along_rows) {
  if (recipe.blocks == Blocks::kTensor) return Float8Blocks::kTensor;
  if (recipe.blocks == Blocks::k128x128) return Float8Blocks::kSquare;
  return along_rows ? Float8Blocks::kRow : Float8Blocks::kColumn;
}

/// Returns true if the tensor's scale is left to the product. On a GPU, a product cannot read it
/// without waiting.
bool leaves_scale(const at::Tensor& x, const OperandRecipe& recipe) {
  return recipe.blocks == Blocks::kTensor && x.is_cpu();
}

OperandCopies quantize_float8(const at::Tensor& x, const OperandRecipe& recipe,
                              const OperandRequest& request) {
  using Second = Float8Spec::Second;
  const bool numbers = request.row || request.column, lines = recipe.blocks == Blocks::k1x128;
  Float8Spec spec = {.format = *recipe.format,
                     .blocks = float8_blocks(recipe, request.row),
                     .power_of_two = !recipe.float32_scales,
                     .amax = request.amax,
                     .values = numbers,
                     .wide = request.wide,
                     .unscaled = leaves_scale(x, recipe)};
  if (request.kept && numbers) {
    spec.second = Second::kCodes;
  } else if (request.row && request.column && lines) {
    spec.second = Second::kValues;
  }
  const Float8 made = quantize_float8(x, spec);
  OperandCopies copies;
  copies.statistics = made.statistics;
  if (request.row) copies.row = made.values;
  if (request.column) copies.column = request.row && lines ? made.second.values : made.values;
  if (spec.unscaled) copies.row_scale = copies.column_scale = made.tensor.scales.item<float>();
  if (request.kept) {
    const Float8Tensor& kept = numbers ? made.second.tensor : made.tensor;
    copies.codes = kept.codes;
    copies.scales = kept.scales;
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
    copies.row_scale = copies.column_scale = made.tensor.tensor_scale.item<float>();
    copies.statistics = made.statistics;
    return copies;
  }
  if (request.row) {
    const Nvfp4 made = quantize_nvfp4(x, spec);
    copies.row = made.values;
    copies.row_scale = made.tensor.tensor_scale.item<float>();
    copies.statistics = made.statistics;
  }
  if (request.column) {
    spec.blocks = Nvfp4Blocks::kColumn;
    // The copies round independently.
    spec.seed = mix_seed(request.seed, 1);
    const Nvfp4 made = quantize_nvfp4(recipe.hadamard ? random_hadamard(x) : x, spec);
    copies.column = made.values;
    copies.column_scale = made.tensor.tensor_scale.item<float>();
    if (!request.row) copies.statistics = made.statistics;
  }
  return copies;
}

int64_t rows_of(const at::Tensor& x) { return x.size(0); }
int64_t rows_of(const ops::MadeRows& x) { return x.sizes[0]; }

/// Makes the copies of all matrices in one pass.
template <class X>
GroupCopies quantize_together(std::span<const X> xs, const OperandRecipe& recipe,
                              std::span<const OperandRequest> requests, at::ScalarType dtype) {
  std::vector<uint64_t> seeds;
  for (const OperandRequest& request : requests) seeds.push_back(request.seed);
  QuantizedGroup made = quantize_group(xs, spec_of(recipe, requests[0]), seeds);
  std::vector<int64_t> rows;
  for (const X& x : xs) rows.push_back(rows_of(x));
  const auto parts = [&](at::Tensor& values) {
    const at::Tensor all = values.to(dtype);
    values.reset();
    return all.split_with_sizes(rows);
  };
  GroupCopies copies;
  copies.statistics = std::move(made.statistics);
  if (made.square_values.defined()) copies.row = copies.column = parts(made.square_values);
  if (made.row_values.defined()) copies.row = parts(made.row_values);
  if (made.column_values.defined()) copies.column = parts(made.column_values);
  return copies;
}

}  // namespace

GroupCopies quantize_operands(std::span<const at::Tensor> xs, const OperandRecipe& recipe,
                              std::span<const OperandRequest> requests, at::ScalarType dtype) {
  if (xs[0].is_cpu() && recipe.is_microscaling())
    return quantize_together(xs, recipe, requests, dtype);
  GroupCopies copies;
  for (size_t i = 0; i < xs.size(); ++i) {
    const OperandCopies made = quantize_operand(xs[i], recipe, requests[i]);
    if (made.row.defined()) copies.row.push_back(made.row.to(dtype));
    if (made.column.defined())
      copies.column.push_back(made.column.is_same(made.row) ? copies.row.back()
                                                            : made.column.to(dtype));
    copies.statistics.push_back(made.statistics);
  }
  return copies;
}

GroupCopies quantize_operands(std::span<const ops::MadeRows> xs, const OperandRecipe& recipe,
                              std::span<const OperandRequest> requests, at::ScalarType dtype) {
  DOVETAIL_CHECK(recipe.is_microscaling(), "{} is not read by rows", name(*recipe.format));
  return quantize_together(xs, recipe, requests, dtype);
}

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

OperandCopies dequantize_kept(const at::Tensor& codes, const at::Tensor& scales,
                              const OperandRecipe& recipe, at::ScalarType dtype) {
  OperandCopies copies;
  if (recipe.is_microscaling()) {
    copies.column =
        dequantize(MXTensor(codes, scales, *recipe.format, Orientation::kColumn), dtype);
    return copies;
  }
  const Float8Tensor kept{codes, scales, *recipe.format, float8_blocks(recipe, false)};
  const bool unscaled = leaves_scale(codes, recipe);
  copies.column = unscaled ? dequantize_unscaled(kept, dtype) : dequantize(kept, dtype);
  if (unscaled) copies.column_scale = scales.item<float>();
  return copies;
}

std::pair<at::Tensor, at::Tensor> column_codes(const at::Tensor& x, const OperandRecipe& recipe) {
  const std::string format =
      fmt::format("dovetail::mx_column_codes.{}.{}", name(*recipe.format), name(recipe.scale_mode));
  const auto made = operation(format.c_str(), {.reads = {x}}, [recipe](const Operands& inputs) {
    const OperandCopies copies =
        quantize_operand(inputs.reads[0], recipe, {.kept = true, .count = false});
    return std::vector{copies.codes, copies.scales};
  });
  return {made[0], made[1]};
}

bool emulates_in_bfloat16() {
  return has_bfloat16_instructions() && ops::simd_level() == ops::SimdLevel::kAvx512;
}

at::ScalarType emulation_dtype(const at::Tensor& x, const OperandRecipe& a,
                               const OperandRecipe& b) {
  const bool instructions = x.is_cuda() || emulates_in_bfloat16();
  const auto exact = [&](const OperandRecipe& recipe) {
    return !recipe.is_nvfp4() && (!recipe.float32_scales || leaves_scale(x, recipe));
  };
  return instructions && exact(a) && exact(b) && x.scalar_type() == at::kBFloat16 ? at::kBFloat16
                                                                                  : at::kFloat;
}

}  // namespace dovetail::mx
