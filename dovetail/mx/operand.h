#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dovetail/mx/recipe.h"
#include "dovetail/mx/statistics.h"
#include "dovetail/mx/tensor.h"
#include "dovetail/ops/row_operation.h"

/// Quantization of one tensor of a Linear (weight, activation or gradient) for its products, in any
/// recipe's format. Native products (native.h) read codes. Emulated products multiply dequantized
/// numbers.
namespace dovetail::mx {

/// Results to make from a tensor x.
/// - row, column: dequantized numbers of x, quantized with blocks along its rows or its columns.
/// - kept: codes of x, quantized with blocks along its columns, to be kept for backward.
struct OperandRequest {
  bool row = false, column = false, kept = false;
  /// Make `row` and `column` as codes instead of numbers, for native products.
  bool as_codes = false;
  uint64_t seed = 0;  ///< seed of stochastic rounding
  /// Delayed scaling: largest magnitude in earlier steps (Float8Spec::amax). Undefined: scale by
  /// the tensor's own magnitudes.
  at::Tensor amax = {};
  bool count = true;  ///< count statistics of a GPU, see QuantizeSpec::count (quantize.h)
};

/// Results of `quantize_operand`. A result that was not requested is undefined.
struct OperandCopies {
  /// Dequantized numbers in `emulation_dtype`, or in a narrower dtype that is exact. `row` and
  /// `column` are the same tensor if rows and columns share their scales: square blocks, or one
  /// scale for x.
  at::Tensor row, column;
  at::Tensor codes, scales;  ///< codes and scales of the result `kept`
  /// Statistics of the quantization along rows, or along columns if `row` was not requested.
  Statistics statistics;
  MXTensor row_codes, column_codes;  ///< results with `as_codes`, in place of `row` and `column`
  /// NVFP4: tensor scales of `row` and `column`, float32 scalars. The numbers do not contain them,
  /// so a product must be multiplied by the scales of both its operands. Otherwise undefined.
  at::Tensor row_scale = {}, column_scale = {};
};

/// Quantizes x (rows, cols), float32 or bfloat16. `recipe.format` must be set. With
/// `recipe.hadamard`, `column` is made from the random Hadamard transform of x, and its rows are a
/// multiple of 16. NVFP4 makes no `kept`.
OperandCopies quantize_operand(const at::Tensor& x, const OperandRecipe& recipe,
                               const OperandRequest& request);

/// Quantizes a matrix whose rows are computed at the time they are read (ops/row_operation.h).
/// Requires a microscaling recipe.
OperandCopies quantize_operand(const ops::MadeRows& x, const OperandRecipe& recipe,
                               const OperandRequest& request);

/// Returns the numbers that OperandCopies' `codes` and `scales` stand for, as `dtype`.
at::Tensor dequantize_kept(const at::Tensor& codes, const at::Tensor& scales,
                           const OperandRecipe& recipe, at::ScalarType dtype);

/// Returns true if products of bfloat16 tensors on this CPU are emulated in bfloat16, not float32.
/// This needs AVX-512 and its BF16 instructions.
bool emulates_in_bfloat16();

/// Returns the dtype in which to emulate a product of two operands, quantized by recipes `a` and
/// `b`. Every step except the FP32 sums is exact in this dtype. The dtype is bfloat16 if
/// - x is bfloat16,
/// - all scales are powers of two: no FP8 with float32 scales, no NVFP4,
/// - x is on a GPU, or `emulates_in_bfloat16()` is true.
///
/// Otherwise it is float32.
at::ScalarType emulation_dtype(const at::Tensor& x, const OperandRecipe& a, const OperandRecipe& b);

}  // namespace dovetail::mx
