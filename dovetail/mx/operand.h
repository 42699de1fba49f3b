#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

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
  /// FP8: make `row` and `column` as float32 numbers. Otherwise they are bfloat16 if that is exact.
  bool wide = false;
};

/// Results of `quantize_operand`. A result that was not requested is undefined.
struct OperandCopies {
  /// Dequantized numbers in `emulation_dtype`, or in a narrower dtype that is exact. `row` and
  /// `column` are the same tensor if rows and columns share their scales: square blocks, or one
  /// scale for x.
  at::Tensor row, column;
  /// Factors that the numbers in `row` and in `column` lack. A product is multiplied by the factors
  /// of both its operands. On a CPU they are the scale of the whole tensor in FP8 and NVFP4.
  double row_scale = 1, column_scale = 1;
  at::Tensor codes, scales;  ///< codes and scales of the result `kept`
  /// Statistics of the quantization along rows, or along columns if `row` was not requested.
  Statistics statistics;
  MXTensor row_codes, column_codes;  ///< results with `as_codes`, in place of `row` and `column`
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

/// Copies of several matrices, as dequantized numbers. `row` and `column` are empty if they were
/// not requested.
struct GroupCopies {
  std::vector<at::Tensor> row, column;
  std::vector<Statistics> statistics;  ///< as OperandCopies::statistics
};

/// Quantizes several matrices of equal columns and dtype, each as `quantize_operand` alone.
/// requests[i] belongs to matrix i. All requests ask for the same results: `row`, `column` or both.
/// Results are in `dtype`, which must represent them exactly (`emulation_dtype`). On the CPU, a
/// microscaling recipe takes one pass over all matrices, and their results share memory. Other
/// recipes, and a GPU, quantize one matrix after another.
GroupCopies quantize_operands(std::span<const at::Tensor> xs, const OperandRecipe& recipe,
                              std::span<const OperandRequest> requests, at::ScalarType dtype);
/// Does the same for rows that are computed when they are read. Requires a microscaling recipe and
/// the CPU.
GroupCopies quantize_operands(std::span<const ops::MadeRows> xs, const OperandRecipe& recipe,
                              std::span<const OperandRequest> requests, at::ScalarType dtype);

/// Returns the numbers that the codes and scales of a result `kept` stand for, as `dtype`, in
/// `column`, with their `column_scale`.
OperandCopies dequantize_kept(const at::Tensor& codes, const at::Tensor& scales,
                              const OperandRecipe& recipe, at::ScalarType dtype);

/// Makes codes and scales of the column copy of x (rows, cols), by a microscaling recipe. It is an
/// operation of its own in a recorded step, so that a plan may keep either x or the codes. The
/// operation's name contains format and scale mode (plan/record/packable.h).
std::pair<at::Tensor, at::Tensor> column_codes(const at::Tensor& x, const OperandRecipe& recipe);

/// Returns true if products of bfloat16 tensors on this CPU are emulated in bfloat16, not float32.
/// This needs AVX-512 and its BF16 instructions.
bool emulates_in_bfloat16();

/// Returns the dtype in which to emulate a product of two operands, quantized by recipes `a` and
/// `b`. Every step except the FP32 sums is exact in this dtype. The dtype is bfloat16 if
/// - x is bfloat16,
/// - all scales are powers of two, or on a CPU the scale of a whole tensor in FP8. NVFP4 has
/// others.
/// - x is on a GPU, or `emulates_in_bfloat16()` is true.
///
/// Otherwise it is float32.
at::ScalarType emulation_dtype(const at::Tensor& x, const OperandRecipe& a, const OperandRecipe& b);

}  // namespace dovetail::mx
