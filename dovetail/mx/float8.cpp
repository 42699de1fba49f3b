#include "dovetail/mx/float8.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"
#include "dovetail/mx/float8_simd.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::mx {

at::ScalarType float8_type(Format format) {
  return format == Format::kE5M2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
}

namespace {

struct Layout {
  int64_t rows, cols, row_block, col_block;
};

/// Views a tensor of these sizes as a matrix in which each block is a rectangle.
Layout layout_of(at::IntArrayRef sizes, Float8Blocks blocks) {
  const int64_t elements = c10::multiply_integers(sizes);
  const int64_t rows =
      blocks == Float8Blocks::kColumn ? sizes[0] : elements / std::max<int64_t>(sizes.back(), 1);
  const int64_t cols = elements / std::max<int64_t>(rows, 1);
  switch (blocks) {
    case Float8Blocks::kTensor:
      return {rows, cols, std::max<int64_t>(rows, 1), std::max<int64_t>(cols, 1)};
    case Float8Blocks::kRow:
      return {rows, cols, 1, kFloat8Block};
    case Float8Blocks::kColumn:
      return {rows, cols, kFloat8Block, 1};
    case Float8Blocks::kSquare:
      return {rows, cols, kFloat8Block, kFloat8Block};
  }
  return {};
}

std::vector<int64_t> float8_scale_sizes(at::IntArrayRef sizes, Float8Blocks blocks) {
  const auto count = [](int64_t size) { return (size + kFloat8Block - 1) / kFloat8Block; };
  std::vector<int64_t> result = sizes.vec();
  if (blocks == Float8Blocks::kTensor) return {};
  if (blocks != Float8Blocks::kRow) result.front() = count(result.front());
  if (blocks != Float8Blocks::kColumn) result.back() = count(result.back());
  return result;
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
  if (!spec.amax.defined()) return;
  user_check(spec.blocks == Float8Blocks::kTensor,
             "mx::quantize_float8: a largest magnitude from outside is for a whole tensor");
  user_check(spec.amax.dim() == 0 && spec.amax.scalar_type() == at::kFloat &&
                 spec.amax.device() == x.device(),
             "mx::quantize_float8: amax must be a float32 scalar on the device of x {}, but is {}",
             ops::describe(x), ops::describe(spec.amax));
}

/// Returns the largest magnitude of each block of x (rows, cols), float32.
at::Tensor block_amax(const at::Tensor& x, const Layout& l) {
  const int64_t down = (l.rows + l.row_block - 1) / l.row_block,
                across = (l.cols + l.col_block - 1) / l.col_block;
  const at::Tensor padded = at::constant_pad_nd(
      x.abs(), {0, across * l.col_block - l.cols, 0, down * l.row_block - l.rows});
  return padded.view({down, l.row_block, across, l.col_block}).amax({1, 3});
}

/// Expands one number per block to one number per element.
at::Tensor of_elements(const at::Tensor& of_blocks, const Layout& l) {
  return of_blocks.repeat_interleave(l.row_block, 0)
      .narrow(0, 0, l.rows)
      .repeat_interleave(l.col_block, 1)
      .narrow(1, 0, l.cols);
}

/// Computes the same numbers and codes as the CPU, with ATen operations. Counts nothing and does
/// not wait for the GPU.
Float8 quantize_on_gpu(const at::Tensor& x_in, const Float8Spec& spec) {
  constexpr double kSmallestAmax = 0x1p-80, kNan = std::numeric_limits<double>::quiet_NaN();
  const Layout l = layout_of(x_in.sizes(), spec.blocks);
  Float8 out;
  const auto value_type = spec.power_of_two ? x_in.scalar_type() : at::kFloat;
  at::Tensor scales =
      at::ones(float8_scale_sizes(x_in.sizes(), spec.blocks), x_in.options().dtype(at::kFloat));
  at::Tensor codes = at::empty(x_in.sizes(), x_in.options().dtype(at::kByte));
  at::Tensor values = at::empty(x_in.sizes(), x_in.options().dtype(value_type));
  if (x_in.numel() > 0) {
    const at::Tensor x = x_in.detach().contiguous().view({l.rows, l.cols}).to(at::kFloat);
    const at::Tensor most = block_amax(x, l), finite = at::isfinite(most);
    const double largest = largest_number(spec.format);
    const at::Tensor amax = spec.amax.defined() ? spec.amax.expand_as(most) : most;
    at::Tensor factor = at::full_like(most, largest).div(amax.clamp_min(kSmallestAmax));
    if (spec.power_of_two) factor = factor.view(at::kInt).bitwise_and(0x7f800000).view(at::kFloat);
    factor = at::where(finite, factor, 0.0);
    const at::Tensor scale = at::where(finite, factor.reciprocal(), kNan);
    const at::Tensor of_element = of_elements(factor, l);
    const at::Tensor scaled =
        at::where(of_element == 0, 0.0, x.mul(of_element).clamp(-largest, largest));
    const at::Tensor elements = scaled.to(float8_type(spec.format));
    codes = elements.view(at::kByte).view(x_in.sizes());
    values = elements.to(at::kFloat).mul(of_elements(scale, l)).to(value_type).view(x_in.sizes());
    scales = scale.view(scales.sizes());
  }
  if (spec.values) {
    out.values = values;
  } else {
    out.tensor = {codes, scales, spec.format, spec.blocks};
  }
  return out;
}

}  // namespace

void raise_column_maxima(const Float8Problem& p, PieceRange piece, uint32_t* most) {
  for_each_element(p.cols, piece, [&](int64_t index, int64_t column) {
    most[column] = std::max(most[column], load_bits(p.source, p.x, index) & bits::kMagnitude);
  });
}

void encode_float8_piece(const Float8Problem& p, PieceRange piece, const ColumnScales& scales,
                         Statistics& statistics) {
  constexpr int kOne = kScaleBias;
  for_each_element(p.cols, piece, [&](int64_t index, int64_t column) {
    const float factor = scales.factor[column], scale = scales.scale[column];
    const uint32_t x = factor == 0 ? 0 : load_bits(p.source, p.x, index);
    const float scaled = std::bit_cast<float>(x) * factor;
    const uint8_t code = encode(std::bit_cast<uint32_t>(scaled) | (x & bits::kSign), kOne, p.spec);
    const float element = std::bit_cast<float>(decode(code, kOne, p.spec)), value = element * scale;
    if (p.codes) {
      p.codes[index] = code;
    } else if (p.source == Source::kBFloat16 && p.power_of_two) {
      static_cast<uint16_t*>(p.values)[index] = round_to_bfloat16(std::bit_cast<uint32_t>(value));
    } else {
      static_cast<float*>(p.values)[index] = value;
    }
    if (factor == 0) return;
    const double unit = static_cast<double>(scale),
                 error = static_cast<double>(scaled) - static_cast<double>(element);
    statistics.signal += std::pow(static_cast<double>(scaled) * unit, 2);
    statistics.error += std::pow(error * unit, 2);
    if (element == 0 && (x & bits::kMagnitude) != 0) ++statistics.underflows;
    if (p.amax > 0 && (x & bits::kMagnitude) > std::bit_cast<uint32_t>(p.amax))
      ++statistics.saturations;
  });
}

Float8 quantize_float8(const at::Tensor& x_in, const Float8Spec& spec) {
  check_input(x_in, spec);
  const TraceSpan span("dovetail::quantize_float8");
  if (x_in.is_cuda()) return quantize_on_gpu(x_in, spec);
  ops::simd_level();  // DOVETAIL_SIMD takes effect before the first kernel runs
  const at::Tensor x = x_in.detach().contiguous();
  const Layout layout = layout_of(x.sizes(), spec.blocks);
  const at::Tensor scales =
      at::ones(float8_scale_sizes(x.sizes(), spec.blocks), x.options().dtype(at::kFloat));
  Float8 out;
  if (spec.values) {
    out.values =
        at::empty(x.sizes(), x.options().dtype(spec.power_of_two ? x.scalar_type() : at::kFloat));
  } else {
    out.tensor = {at::empty(x.sizes(), x.options().dtype(at::kByte)), scales, spec.format,
                  spec.blocks};
  }
  out.statistics = quantize_float8_blocks(
      {.rows = layout.rows,
       .cols = layout.cols,
       .row_block = layout.row_block,
       .col_block = layout.col_block,
       .source = x.scalar_type() == at::kFloat ? Source::kFloat32 : Source::kBFloat16,
       .x = x.const_data_ptr(),
       .spec = element_spec(spec.format),
       .power_of_two = spec.power_of_two,
       .amax = spec.amax.defined() ? *spec.amax.const_data_ptr<float>() : 0,
       .by_codec = !ops::kernel_enabled(ops::Kernel::kQuantize),
       .codes = spec.values ? nullptr : out.tensor.codes.mutable_data_ptr<uint8_t>(),
       .values = spec.values ? out.values.mutable_data_ptr() : nullptr,
       .scales = scales.mutable_data_ptr<float>()});
  return out;
}

at::Tensor dequantize(const Float8Tensor& x, at::ScalarType dtype) {
  constexpr int64_t kGrainElements = 65536;
  if (x.codes.is_cuda()) {
    if (x.codes.numel() == 0) return at::empty(x.codes.sizes(), x.codes.options().dtype(dtype));
    const Layout l = layout_of(x.codes.sizes(), x.blocks);
    const at::Tensor of_blocks = x.scales.reshape(
        {(l.rows + l.row_block - 1) / l.row_block, (l.cols + l.col_block - 1) / l.col_block});
    const at::Tensor numbers =
        x.codes.contiguous().view(float8_type(x.format)).view({l.rows, l.cols}).to(at::kFloat);
    return numbers.mul(of_elements(of_blocks, l)).view(x.codes.sizes()).to(dtype);
  }
  const ElementSpec& spec = element_spec(x.format);
  std::array<float, 256> elements;
  for (size_t code = 0; code < elements.size(); ++code)
    elements[code] = std::bit_cast<float>(decode(static_cast<uint8_t>(code), kScaleBias, spec));
  const Layout layout = layout_of(x.codes.sizes(), x.blocks);
  const int64_t blocks = (layout.cols + layout.col_block - 1) / layout.col_block;
  const at::Tensor y = at::empty(x.codes.sizes(), x.codes.options().dtype(at::kFloat));
  const auto* codes = x.codes.const_data_ptr<uint8_t>();
  const auto* scales = x.scales.const_data_ptr<float>();
  auto* to = y.mutable_data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(layout.cols, 1));
  parallel_pieces(layout.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* of_row = scales + row / layout.row_block * blocks;
      for (int64_t col = 0; col < layout.cols; ++col)
        to[row * layout.cols + col] =
            elements[codes[row * layout.cols + col]] * of_row[col / layout.col_block];
    }
  });
  return y.to(dtype);
}

}  // namespace dovetail::mx
