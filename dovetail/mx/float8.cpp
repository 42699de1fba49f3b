#include "dovetail/mx/float8.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/mx/block_layout.h"
#include "dovetail/mx/float8_groups.h"
#include "dovetail/mx/float8_simd.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::mx {

at::ScalarType float8_type(Format format) {
  return format == Format::kE5M2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
}

namespace {

BlockShape shape_of(Float8Blocks blocks) {
  switch (blocks) {
    case Float8Blocks::kTensor:
      return {0, 0};
    case Float8Blocks::kRow:
      return {1, kFloat8Block};
    case Float8Blocks::kColumn:
      return {kFloat8Block, 1};
    case Float8Blocks::kSquare:
      return {kFloat8Block, kFloat8Block};
  }
  return {};
}

void check_input(const at::Tensor& x, const Float8Spec& spec) {
  user_check(x.defined(), "mx::quantize_float8: x is undefined");
  user_check(spec.format == Format::kE4M3 || spec.format == Format::kE5M2,
             "mx::quantize_float8: the format must be e4m3 or e5m2, but is {}", name(spec.format));
  user_check(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
             "mx::quantize_float8: x must be float32 or bfloat16, but is {}; convert it first",
             ops::describe(x));
  user_check(x.is_cpu() || x.is_cuda(),
             "mx::quantize_float8: x must be on the CPU or a GPU, but is {}", ops::describe(x));
  const int64_t least = spec.blocks == Float8Blocks::kSquare ? 2 : 1;
  user_check(x.dim() >= least && (least == 1 || x.dim() == 2),
             "mx::quantize_float8: x must have {}, but is {}",
             least == 2 ? "two dimensions" : "a dimension", ops::describe(x));
  user_check(
      !spec.unscaled || (spec.blocks == Float8Blocks::kTensor && x.is_cpu()),
      "mx::quantize_float8: only one scale for a whole tensor on a CPU can be left out; x is "
      "{}",
      ops::describe(x));
  const bool turns = spec.second != Float8Spec::Second::kNone && spec.blocks == Float8Blocks::kRow;
  user_check(!turns || x.dim() == 2,
             "mx::quantize_float8: a second copy with other blocks is for two dimensions; x is {}",
             ops::describe(x));
  if (!spec.amax.defined()) return;
  user_check(spec.blocks == Float8Blocks::kTensor,
             "mx::quantize_float8: a largest magnitude from outside is for a whole tensor");
  user_check(spec.amax.dim() == 0 && spec.amax.scalar_type() == at::kFloat &&
                 spec.amax.device() == x.device(),
             "mx::quantize_float8: amax must be a float32 scalar on the device of x {}, but is {}",
             ops::describe(x), ops::describe(spec.amax));
}

/// Returns the largest magnitude of each block of x (rows, cols), float32.
at::Tensor block_amax(const at::Tensor& x, const BlockLayout& l) {
  const int64_t down = l.blocks_down(), across = l.blocks_across();
  const at::Tensor padded = at::constant_pad_nd(
      x.abs(), {0, across * l.col_block - l.cols, 0, down * l.row_block - l.rows});
  return padded.view({down, l.row_block, across, l.col_block}).amax({1, 3});
}

/// Expands one number per block to one number per element.
at::Tensor of_elements(const at::Tensor& of_blocks, const BlockLayout& l) {
  return of_blocks.repeat_interleave(l.row_block, 0)
      .narrow(0, 0, l.rows)
      .repeat_interleave(l.col_block, 1)
      .narrow(1, 0, l.cols);
}

/// Returns the dtype of dequantized numbers of x.
at::ScalarType value_type(const at::Tensor& x, const Float8Spec& spec) {
  return !spec.wide && (spec.power_of_two || spec.unscaled) ? x.scalar_type() : at::kFloat;
}

Float8Blocks blocks_of_second(Float8Blocks blocks) {
  return blocks == Float8Blocks::kRow ? Float8Blocks::kColumn : blocks;
}

/// Computes the same numbers and codes as the CPU, with ATen operations. Counts nothing and does
/// not wait for the GPU.
Float8 quantize_on_gpu(const at::Tensor& x_in, const Float8Spec& spec) {
  const BlockLayout l = block_layout(x_in.sizes(), shape_of(spec.blocks));
  Float8 out;
  const at::ScalarType dtype = value_type(x_in, spec);
  at::Tensor scales =
      at::ones(scale_sizes(x_in.sizes(), shape_of(spec.blocks)), x_in.options().dtype(at::kFloat));
  at::Tensor codes = at::empty(x_in.sizes(), x_in.options().dtype(at::kByte));
  at::Tensor values = at::empty(x_in.sizes(), x_in.options().dtype(dtype));
  if (x_in.numel() > 0) {
    const at::Tensor x = x_in.detach().contiguous().view({l.rows, l.cols}).to(at::kFloat);
    const at::Tensor most = block_amax(x, l);
    const auto [factor, scale] =
        float8_factors(most, spec.amax.defined() ? spec.amax.expand_as(most) : most, spec.format,
                       spec.power_of_two);
    const at::Tensor elements = float8_elements(x, of_elements(factor, l), spec.format);
    codes = elements.view(at::kByte).view(x_in.sizes());
    values = elements.to(at::kFloat).mul(of_elements(scale, l)).to(dtype).view(x_in.sizes());
    scales = scale.view(scales.sizes());
  }
  if (spec.values) {
    out.values = values;
  } else {
    out.tensor.codes = codes;
  }
  out.tensor = {out.tensor.codes, scales, spec.format, spec.blocks};
  if (spec.second == Float8Spec::Second::kNone) return out;
  Float8Spec of_second = spec;
  of_second.blocks = blocks_of_second(spec.blocks);
  of_second.values = spec.second == Float8Spec::Second::kValues;
  of_second.second = Float8Spec::Second::kNone;
  out.second = quantize_on_gpu(x_in, of_second);
  return out;
}

/// Allocates a copy of x with codes or dequantized numbers.
Float8Copy allocate(const at::Tensor& x, const Float8Spec& spec, Float8Blocks blocks, bool values) {
  Float8Copy made;
  made.tensor = {values ? at::Tensor() : at::empty(x.sizes(), x.options().dtype(at::kByte)),
                 at::ones(scale_sizes(x.sizes(), shape_of(blocks)), x.options().dtype(at::kFloat)),
                 spec.format, blocks};
  if (values) made.values = at::empty(x.sizes(), x.options().dtype(value_type(x, spec)));
  return made;
}

/// Adds the memory of a copy to the target of its blocks.
void add_target(Float8Problem& p, const Float8Copy& copy, const Float8Spec& spec) {
  Float8Target& target = copy.tensor.blocks == Float8Blocks::kRow      ? p.row
                         : copy.tensor.blocks == Float8Blocks::kColumn ? p.column
                         : copy.tensor.blocks == Float8Blocks::kSquare ? p.square
                                                                       : p.whole;
  target.scales = copy.tensor.scales.mutable_data_ptr<float>();
  if (copy.tensor.codes.defined()) target.codes = copy.tensor.codes.mutable_data_ptr<uint8_t>();
  if (!copy.values.defined()) return;
  target.values = copy.values.mutable_data_ptr();
  target.wide_values = copy.values.scalar_type() == at::kFloat;
  target.unscaled = spec.unscaled;
}

}  // namespace

Float8 quantize_float8(const at::Tensor& x_in, const Float8Spec& spec) {
  check_input(x_in, spec);
  const TraceSpan span("dovetail::quantize_float8");
  if (x_in.is_cuda()) return quantize_on_gpu(x_in, spec);
  ops::simd_level();  // DOVETAIL_SIMD takes effect before the first kernel runs
  const at::Tensor x = x_in.detach().contiguous();
  const BlockLayout layout = block_layout(x.sizes(), shape_of(spec.blocks));
  Float8Problem problem = {
      .rows = layout.rows,
      .cols = layout.cols,
      .source = x.scalar_type() == at::kFloat ? Source::kFloat32 : Source::kBFloat16,
      .x = x.const_data_ptr(),
      .spec = element_spec(spec.format),
      .power_of_two = spec.power_of_two,
      .amax = spec.amax.defined() ? *spec.amax.const_data_ptr<float>() : 0,
      .by_codec = !ops::kernel_enabled(ops::Kernel::kQuantize),
      .row = {},
      .column = {},
      .square = {},
      .whole = {}};
  Float8 out;
  static_cast<Float8Copy&>(out) = allocate(x, spec, spec.blocks, spec.values);
  add_target(problem, out, spec);
  if (spec.second != Float8Spec::Second::kNone) {
    const Float8Blocks blocks = blocks_of_second(spec.blocks);
    out.second = allocate(x, spec, blocks, spec.second == Float8Spec::Second::kValues);
    if (blocks == spec.blocks) out.second.tensor.scales = out.tensor.scales;
    add_target(problem, out.second, spec);
  }
  out.statistics = quantize_float8_blocks(problem);
  return out;
}

at::Tensor dequantize(const Float8Tensor& x, at::ScalarType dtype) {
  const BlockLayout l = block_layout(x.codes.sizes(), shape_of(x.blocks));
  at::Tensor y = at::empty(x.codes.sizes(), x.codes.options().dtype(dtype));
  if (x.codes.numel() == 0) return y;
  const at::Tensor codes = x.codes.contiguous(), scales = x.scales.contiguous();
  if (x.codes.is_cuda()) {
    const at::Tensor of_blocks = scales.view({l.blocks_down(), l.blocks_across()});
    const at::Tensor numbers =
        codes.view(float8_type(x.format)).view({l.rows, l.cols}).to(at::kFloat);
    return numbers.mul(of_elements(of_blocks, l)).view(x.codes.sizes()).to(dtype);
  }
  ops::simd_level();  // DOVETAIL_SIMD takes effect before the first kernel runs
  const DequantizeProblem problem = {.rows = l.rows,
                                     .cols = l.cols,
                                     .row_block = l.row_block,
                                     .col_block = l.col_block,
                                     .codes = codes.const_data_ptr<uint8_t>(),
                                     .scales = nullptr,
                                     .float_scales = scales.const_data_ptr<float>(),
                                     .spec = element_spec(x.format)};
  if (dtype == at::kFloat) {
    dequantize_blocks(problem, y.mutable_data_ptr<float>());
  } else {
    dequantize_blocks(problem, static_cast<uint16_t*>(y.mutable_data_ptr()));
  }
  return y;
}

at::Tensor dequantize_unscaled(const Float8Tensor& x, at::ScalarType dtype) {
  Float8Tensor one = x;
  one.scales = at::ones({}, x.scales.options());
  one.blocks = Float8Blocks::kTensor;
  return dequantize(one, dtype);
}

}  // namespace dovetail::mx
