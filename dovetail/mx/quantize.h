#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "dovetail/mx/format.h"
#include "dovetail/mx/statistics.h"
#include "dovetail/mx/tensor.h"
#include "dovetail/ops/row_operation.h"

namespace dovetail::mx {

/// Quantized copies of a tensor to make; `quantize` below describes row, column and square. If row
/// and column copies are requested together, the tensor is read once. Each copy is quantized from
/// the tensor, not from the other copy's codes.
enum class Copies { kRow, kColumn, kRowAndColumn, kSquare };

struct QuantizeSpec {
  Format format = Format::kE4M3;
  ScaleMode scale_mode = ScaleMode::kRoundUp;
  NonFinite non_finite = NonFinite::kPoison;
  Rounding rounding = Rounding::kNearestEven;
  uint64_t seed = 0;  ///< seed of stochastic rounding
  /// Only for tensors on a GPU. True: count statistics, and wait for the GPU. False: leave the
  /// statistics empty, and do not wait. A CPU always counts, at no cost.
  bool count = true;
  Copies copies = Copies::kRow;
  /// For the copy of this name: return dequantized numbers in x's dtype instead of codes. x must
  /// not be float16. Emulated products (native.h) multiply dequantized numbers.
  bool row_values = false, column_values = false, square_values = false;
};

/// Result of `quantize`. A copy that was not requested is undefined, and its statistics are empty.
/// If values were requested for a copy, the MXTensor is undefined, too. The `_values` tensor then
/// has the numbers that `dequantize` would return for the copy.
struct Quantized {
  MXTensor row, column, square;
  at::Tensor row_values, column_values, square_values;
  Statistics row_statistics, column_statistics, square_statistics;
};

/// Quantizes `x` to a microscaling format: one power-of-two scale per block of 32 elements.
///
/// x        at least one dimension; float32, bfloat16 or float16, any strides, on CPU or a GPU.
/// row      blocks along the last dimension: scales (..., ceil(last / 32)).
/// column   blocks along the first dimension: scales (ceil(first / 32), ...).
/// square   blocks of 32 x 32 of a matrix, for weights that are read both ways: scales (ceil(rows /
///          32), ceil(cols / 32)).
///
/// Codes have x's shape. A short last block is quantized as if padded with zeros. Element
/// arithmetic is exact up to the one rounding into the format. The processor's flush-to-zero and
/// denormals-are-zero bits do not change it.
///
/// Stochastic rounding gives each element a random word. Let i be the element's row-major index in
/// x. The word is word i % 4 of `Philox4x32-10(seed, i / 4, RandomStream::kQuantize)`. Results do
/// not depend on the number of threads. Codes and scales do not depend on the instruction set and
/// are the same on a GPU. Throws UserError for a tensor that cannot be quantized, naming it.
/// Source: OCP Microscaling Formats v1.0; scale rounding of arXiv 2506.08027, algorithm 1.
Quantized quantize(const at::Tensor& x, const QuantizeSpec& spec = {});

/// Quantizes a matrix whose rows are computed when they are read (ops/row_operation.h). On the CPU
/// the matrix never exists as a whole in memory. On a GPU this holds for values of one orientation
/// in bfloat16 (`fuses_activation` in quantize_simd.h), if nothing is counted.
Quantized quantize(const ops::MadeRows& x, const QuantizeSpec& spec = {});

/// Values of several matrices, quantized one by one and stored one below the other: (all rows,
/// cols). Values that were not requested are undefined.
struct QuantizedGroup {
  at::Tensor row_values, column_values, square_values;
  /// Statistics of each matrix: of its row copy if it was requested, otherwise of its only copy.
  std::vector<Statistics> statistics;
};

/// Quantizes several matrices in one pass over all threads. Each gets the values and statistics
/// that `quantize` gives it alone: no block spans two matrices. CPU only. All matrices have the
/// same number of columns and the same dtype, float32 or bfloat16. `spec` must ask for values,
/// not codes. seeds[i] is the seed of matrix i for stochastic rounding, instead of `spec.seed`.
/// The sizes of all allocations depend only on the number of matrices and the sum of their rows.
QuantizedGroup quantize_group(std::span<const at::Tensor> xs, const QuantizeSpec& spec,
                              std::span<const uint64_t> seeds);
QuantizedGroup quantize_group(std::span<const ops::MadeRows> xs, const QuantizeSpec& spec,
                              std::span<const uint64_t> seeds);

/// Quantizes x into the memory of `out`, which holds copies that `quantize` made earlier from a
/// tensor of the same shape. It serves callers that must not allocate memory for copies. Throws
/// UserError if a copy requested by `spec` is missing, has another shape or format, or has values
/// instead of codes.
void quantize_into(const at::Tensor& x, const QuantizeSpec& spec, Quantized& out);

/// Returns the numbers that the codes stand for, as float32 or bfloat16: code * 2^X, with the scale
/// 2^X of the block. A block with scale byte 255 gives NaN.
///
/// The result is exact, with two exceptions.
/// - Numbers of 2^128 or more become infinite. ScaleMode::kRoundUp can turn FLT_MAX into 2^128.
/// - In bfloat16, numbers are rounded to nearest even in a block with a very small scale. Its X is
///   below `smallest_exact_bfloat16_exponent` (-124 for E4M3). Numbers can then be below 2^-133,
///   the smallest subnormal bfloat16.
at::Tensor dequantize(const MXTensor& x, at::ScalarType dtype = at::kFloat);

}  // namespace dovetail::mx
