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
/// - kept: codes with blocks along its columns, to be kept for backward.
struct OperandRequest {
  bool row = false, column = false, kept = false;
  /// Make `row` and `column` as codes instead of numbers, for native products.
  bool as_codes = false;
  uint64_t seed = 0;  ///< seed of stochastic rounding
  /// Delayed scaling: largest magnitude in earlier steps. 0: the tensor's own.
  float amax = 0;
  bool count = true;  ///< count statistics, see QuantizeSpec
};

/// Results of `quantize_operand`. Those that were not requested are undefined.
struct OperandCopies {
  /// Dequantized numbers in `emulation_dtype`, or in a narrower dtype that is exact. Both are the
  /// same tensor if their numbers agree.
  at::Tensor row, column;
  at::Tensor codes, scales;  ///< codes and scales of the result `kept`
  /// Statistics of the quantization along rows, or along columns if `row` was not requested.
  Statistics statistics;
  MXTensor row_codes, column_codes;  ///< results with `as_codes`, in place of `row` and `column`
};

/// Quantizes x (rows, cols), float32 or bfloat16, by a recipe with a format.
OperandCopies quantize_operand(const at::Tensor& x, const OperandRecipe& recipe,
                               const OperandRequest& request);

/// Quantizes a matrix whose rows are computed when they are read (ops/row_operation.h). Requires a
/// microscaling recipe.
OperandCopies quantize_operand(const ops::MadeRows& x, const OperandRecipe& recipe,
                               const OperandRequest& request);

/// Returns the dequantized numbers of `OperandCopies::codes` with their scales, as `dtype`.
at::Tensor dequantize_kept(const at::Tensor& codes, const at::Tensor& scales,
                           const OperandRecipe& recipe, at::ScalarType dtype);

/// Returns true if products on the CPU are emulated in bfloat16, not float32. This needs AVX-512
/// and its BF16 instructions.
bool emulates_in_bfloat16();

/// Returns the dtype in which to emulate a product of two operands, quantized by recipes `a` and
/// `b`. In it, every step except the FP32 sums is exact. It is x's dtype. Exception: float32 on a
/// CPU without bfloat16 instructions, or if scales are not powers of two.
at::ScalarType emulation_dtype(const at::Tensor& x, const OperandRecipe& a, const OperandRecipe& b);

}  // namespace dovetail::mx
