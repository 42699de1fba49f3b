#include "dovetail/mx/nvfp4.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/philox.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"
#include "dovetail/mx/block_layout.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::mx {

namespace {

BlockShape shape_of(Nvfp4Blocks blocks) {
  return {blocks == Nvfp4Blocks::kRow ? 1 : kNvfp4Block,
          blocks == Nvfp4Blocks::kColumn ? 1 : kNvfp4Block};
}

void check_tensor(const char* function, const at::Tensor& x) {
  user_check(x.defined(), "mx::{}: x is undefined", function);
  user_check(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
             "mx::{}: x must be float32 or bfloat16, but is {}; convert it first", function,
             ops::describe(x));
  user_check(x.is_cpu(),
             "mx::{}: NVFP4 is implemented on the CPU, but x is {}; move x to the CPU, or use e2m1 "
             "in blocks of 32 (MXFP4)",
             function, ops::describe(x));
}

void check_input(const at::Tensor& x, const Nvfp4Spec& spec) {
  check_tensor("quantize_nvfp4", x);
  const bool square = spec.blocks == Nvfp4Blocks::kSquare;
  user_check(square ? x.dim() == 2 : x.dim() >= 1, "mx::quantize_nvfp4: x must have {}, but is {}",
             square ? "two dimensions" : "a dimension", ops::describe(x));
  const at::Tensor& given = spec.tensor_scale;
  user_check(given.defined() == (spec.scaling == TensorScale::kGiven),
             "mx::quantize_nvfp4: a tensor scale goes with TensorScale::kGiven, and only with it");
  if (!given.defined()) return;
  user_check(
      given.numel() == 1 && given.scalar_type() == at::kFloat && given.is_cpu(),
      "mx::quantize_nvfp4: the tensor scale must be one float32 number on the CPU, but is {}",
      ops::describe(given));
  const auto scale = given.item<float>();
  user_check(scale >= kSmallestTensorScale && scale <= kLargestTensorScale,
             "mx::quantize_nvfp4: the tensor scale must be between {} and {}, but is {}",
             kSmallestTensorScale, kLargestTensorScale, scale);
}

Source source_of(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ? Source::kFloat32 : Source::kBFloat16;
}

float chosen_tensor_scale(const Nvfp4Problem& problem, const Nvfp4Spec& spec) {
  constexpr float kSmallestAmax = 0x1p-80F, kLargestProduct = 448 * 6;
  if (spec.scaling == TensorScale::kNone) return 1;
  if (spec.scaling == TensorScale::kGiven) return spec.tensor_scale.item<float>();
  return std::max(largest_finite(problem), kSmallestAmax) / kLargestProduct;
}

}  // namespace

Nvfp4 quantize_nvfp4(const at::Tensor& x_in, const Nvfp4Spec& spec) {
  check_input(x_in, spec);
  const TraceSpan span("dovetail::quantize_nvfp4");
  ops::simd_level();  // DOVETAIL_SIMD takes effect before the first kernel runs
  const at::Tensor x = x_in.detach().contiguous();
  const BlockLayout layout = block_layout(x.sizes(), shape_of(spec.blocks));
  const auto bytes = x.options().dtype(at::kByte);
  const at::Tensor scales = at::empty(scale_sizes(x.sizes(), shape_of(spec.blocks)), bytes);
  Nvfp4 out;
  if (spec.values) {
    out.values = at::empty(x.sizes(), x.options());
  } else {
    out.tensor.codes = at::empty(x.sizes(), bytes);
  }
  Nvfp4Problem problem = {
      .rows = layout.rows,
      .cols = layout.cols,
      .row_block = layout.row_block,
      .col_block = layout.col_block,
      .source = source_of(x),
      .x = x.const_data_ptr(),
      .saturate_non_finite = spec.non_finite == NonFinite::kSaturate,
      .stochastic = spec.rounding == Rounding::kStochastic,
      .by_codec = !ops::kernel_enabled(ops::Kernel::kQuantize),
      .seed = spec.seed,
      .codes = spec.values ? nullptr : out.tensor.codes.mutable_data_ptr<uint8_t>(),
      .values = spec.values ? out.values.mutable_data_ptr() : nullptr,
      .scales = scales.mutable_data_ptr<uint8_t>()};
  problem.tensor_scale = chosen_tensor_scale(problem, spec);
  out.statistics = quantize_nvfp4_blocks(problem);
  out.tensor.scales = scales;
  out.tensor.blocks = spec.blocks;
  if (spec.scaling != TensorScale::kNone)
    out.tensor.tensor_scale = at::full({}, problem.tensor_scale, x.options().dtype(at::kFloat));
  return out;
}

at::Tensor dequantize(const Nvfp4Tensor& x, at::ScalarType dtype) {
  constexpr int64_t kGrainElements = 65536;
  user_check(x.codes.defined() && x.codes.is_cpu() && x.codes.scalar_type() == at::kByte,
             "mx::dequantize: codes of NVFP4 must be uint8 on the CPU, but are {}",
             x.codes.defined() ? ops::describe(x.codes) : "undefined");
  user_check(dtype == at::kFloat || dtype == at::kBFloat16,
             "mx::dequantize: an NVFP4 tensor becomes float32 or bfloat16, not {}",
             c10::toString(dtype));
  user_check(x.codes.dim() >= 1 && (x.blocks != Nvfp4Blocks::kSquare || x.codes.dim() == 2) &&
                 x.scales.sizes().vec() == scale_sizes(x.codes.sizes(), shape_of(x.blocks)) &&
                 x.scales.scalar_type() == at::kByte && x.scales.is_cpu(),
             "mx::dequantize: scales {} do not belong to NVFP4 codes {}", ops::describe(x.scales),
             ops::describe(x.codes));
  std::array<float, 256> e2m1, e4m3;
  for (size_t code = 0; code < e4m3.size(); ++code) {
    const auto decoded = [&](Format format) {
      return std::bit_cast<float>(
          decode(static_cast<uint8_t>(code), kScaleBias, element_spec(format)));
    };
    e2m1[code] = decoded(Format::kE2M1);
    e4m3[code] = decoded(Format::kE4M3);
  }
  const BlockLayout l = block_layout(x.codes.sizes(), shape_of(x.blocks));
  const int64_t across = l.blocks_across();
  const at::Tensor codes_in = x.codes.contiguous(), scales_in = x.scales.contiguous();
  const at::Tensor y = at::empty(x.codes.sizes(), codes_in.options().dtype(at::kFloat));
  const auto* codes = codes_in.const_data_ptr<uint8_t>();
  const auto* scales = scales_in.const_data_ptr<uint8_t>();
  const float tensor_scale = x.tensor_scale.defined() ? x.tensor_scale.item<float>() : 1;
  auto* to = y.mutable_data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(l.cols, 1));
  parallel_pieces(l.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint8_t* of_row = scales + row / l.row_block * across;
      for (int64_t block = 0; block < across; ++block) {
        const float scale = tensor_scale * e4m3[of_row[block]];
        const int64_t first = row * l.cols + block * l.col_block,
                      count = std::min(l.col_block, l.cols - block * l.col_block);
        for (int64_t i = first; i < first + count; ++i) to[i] = e2m1[codes[i]] * scale;
      }
    }
  });
  return y.to(dtype);
}

at::Tensor random_hadamard(const at::Tensor& x_in, uint64_t seed) {
  constexpr int64_t kGrainElements = 65536;
  check_tensor("random_hadamard", x_in);
  user_check(x_in.dim() >= 1, "mx::random_hadamard: x must have a dimension, but is {}",
             ops::describe(x_in));
  const TraceSpan span("dovetail::random_hadamard");
  ops::simd_level();
  const at::Tensor x = x_in.detach().contiguous();
  const int64_t rows = x.size(0), cols = x.numel() / std::max<int64_t>(rows, 1),
                blocks = (rows + kNvfp4Block - 1) / kNvfp4Block;
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] = blocks * kNvfp4Block;
  const at::Tensor y = at::empty(sizes, x.options().dtype(at::kFloat));
  if (y.numel() == 0) return y;
  const uint32_t signs =
      philox_words(seed, 0, static_cast<uint64_t>(RandomStream::kQuantize)).word[0] & 0xffff;
  const bool by_codec = !ops::kernel_enabled(ops::Kernel::kQuantize);
  const int64_t element = x.element_size();
  const auto* from = static_cast<const char*>(x.const_data_ptr());
  auto* to = y.mutable_data_ptr<float>();
  const int64_t chunks = (cols + kPieceColumns - 1) / kPieceColumns,
                grain = std::max<int64_t>(
                    1, kGrainElements / (kNvfp4Block * std::min(cols, kPieceColumns)));
  parallel_pieces(blocks * chunks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / chunks * kNvfp4Block, col = item % chunks * kPieceColumns;
      const HadamardRows problem = {.source = source_of(x),
                                    .x = from + row * cols * element,
                                    .rows = std::min(kNvfp4Block, rows - row),
                                    .cols = cols,
                                    .signs = signs,
                                    .to = to + row * cols};
      const int64_t stop = std::min(col + kPieceColumns, cols);
      by_codec ? transform_hadamard(problem, col, stop)
               : transform_hadamard_vectors(problem, col, stop);
    }
  });
  return y;
}

}  // namespace dovetail::mx
