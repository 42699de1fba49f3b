#pragma once

#include <ATen/core/Tensor.h>

#include "dovetail/mx/format.h"
#include "dovetail/mx/statistics.h"
#include "dovetail/mx/tensor.h"
#include "dovetail/ops/row_operation.h"

namespace dovetail::mx {

/// Which copies to make. Row and column together are made from one read of the tensor; neither is
/// derived from the other's codes.
enum class Copies { kRow, kColumn, kRowAndColumn, kSquare };

struct QuantizeSpec {
  Format format = Format::kE4M3;
  ScaleMode scale_mode = ScaleMode::kRoundUp;
  NonFinite non_finite = NonFinite::kPoison;
  Rounding rounding = Rounding::kNearestEven;
  uint64_t seed = 0;  ///< of stochastic rounding
  bool count = true;  ///< false: a GPU leaves statistics empty and is not waited for; on a CPU they
                      ///< cost nothing
  Copies copies = Copies::kRow;
  /// Not codes but the numbers they stand for, in x's dtype (not for float16): what an emulated
  /// product reads.
  bool row_values = false, column_values = false, square_values = false;
};

/// A copy that was not asked for is undefined, and its statistics are empty. So is one whose values
/// were asked for: these are in the tensor beside it, the same numbers as `dequantize` would make
/// of it.
struct Quantized {
  MXTensor row, column, square;
  at::Tensor row_values, column_values, square_values;
  Statistics row_statistics, column_statistics, square_statistics;
};

/// Quantize `x` to a microscaling format: one power-of-two scale per block of 32 elements.
///
/// x        at least one dimension; float32, bfloat16 or float16, any strides, on CPU or a GPU.
/// row      blocks along the last dimension: scales (..., ceil(last / 32)).
/// column   blocks along the first: scales (ceil(first / 32), ...).
/// square   blocks of 32 x 32 of a matrix, for weights that are read both ways: scales (ceil(rows /
/// 32), ceil(cols /
///          32)).
///
/// Codes have x's shape. A short last block is quantized as if padded with zeros. All arithmetic on
/// elements is exact up to the one rounding into the format, whatever the processor's flush-to-zero
/// and denormals-are-zero bits say. Stochastic rounding takes word i % 4 of Philox4x32-10(seed, i /
/// 4, RandomStream::kQuantize) for the element whose row-major index in x is i. The result does not
/// depend on the number of threads; codes and scales do not depend on the instruction set either,
/// and are the same on a GPU. Throws UserError for a tensor that cannot be quantized, naming it.
/// Source: OCP Microscaling Formats v1.0; scale rounding of arXiv 2506.08027, algorithm 1.
Quantized quantize(const at::Tensor& x, const QuantizeSpec& spec = {});

/// The same of a matrix whose rows are made when they are read, on the CPU: it never exists as a
/// whole.
Quantized quantize(const MadeRows& x, const QuantizeSpec& spec = {});

/// The same into the copies of an earlier `quantize` of a tensor of this shape, whose memory is
/// written anew: a weight's copies after each step. Throws UserError when a copy that `spec` asks
/// for is not there, is of another shape or format, or is one of values.
void quantize_into(const at::Tensor& x, const QuantizeSpec& spec, Quantized& out);

/// The column copy made from the codes of a row copy, where the tensor is gone: E4M3 with scales
/// rounded up. Elements of at least 2^-6 times the scales of their row's and their column's block,
/// where E4M3 is normal, are what the tensor's own column copy holds; smaller ones are rounded
/// twice. Throws UserError for another format or orientation.
MXTensor requantize(const MXTensor& row);

/// code * 2^X as float32 or bfloat16; a block with scale 255 is NaN.
///
/// Float32 is exact, except that a product of 2^128 or more is infinite: round_up can turn FLT_MAX
/// into 2^128. bfloat16 has the significand bits of every format, so it is exact too unless the
/// scale's exponent X is below `smallest_exact_bfloat16_exponent` (-124 for E4M3): only there do
/// codes reach under bfloat16's smallest subnormal number, 2^-133, and round to nearest even.
at::Tensor dequantize(const MXTensor& x, at::ScalarType dtype = at::kFloat);

}  // namespace dovetail::mx
