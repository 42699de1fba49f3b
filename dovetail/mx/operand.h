#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dovetail/mx/recipe.h"
#include "dovetail/mx/statistics.h"
#include "dovetail/mx/tensor.h"
#include "dovetail/ops/row_operation.h"

/// Quantization of one tensor of a Linear for its products, in any recipe's format.
namespace dovetail::mx {

/// Results to make from a tensor. row, column: dequantized numbers with blocks along its rows or
/// its columns. kept: codes with blocks along its columns, to be kept for backward.
struct OperandRequest {
  bool row = false, column = false, kept = false;
  bool as_codes = false;  ///< row and column as codes instead of numbers, for native products
  uint64_t seed = 0;      ///< seed of stochastic rounding
  float amax = 0;         ///< largest magnitude for delayed scaling; 0: the tensor's own
  bool count = true;      ///< count statistics, see QuantizeSpec
};

struct OperandCopies {
  /// Numbers in `emulation_dtype`, or in a narrower dtype that is exact. Both are the same tensor
  /// if their numbers agree.
  at::Tensor row, column;
  at::Tensor codes, scales;  ///< the kept copy
  /// Statistics of the row copy, or of the column copy if there is no row copy.
  Statistics statistics;
  MXTensor row_codes, column_codes;  ///< codes that replace row and column
};

/// Quantizes x (rows, cols), float32 or bfloat16, by a recipe that has a format.
OperandCopies quantize_operand(const at::Tensor& x, const OperandRecipe& recipe,
                               const OperandRequest& request);

/// Quantizes rows that are computed when they are read. Requires a microscaling recipe.
OperandCopies quantize_operand(const ops::MadeRows& x, const OperandRecipe& recipe,
                               const OperandRequest& request);

/// Returns the dequantized numbers of a kept copy.
at::Tensor dequantize_kept(const at::Tensor& codes, const at::Tensor& scales,
                           const OperandRecipe& recipe, at::ScalarType dtype);

/// Returns true if products on the CPU are emulated in bfloat16. This needs AVX-512 and its BF16
/// instructions.
bool emulates_in_bfloat16();

/// Returns the dtype in which to emulate a product of two quantized operands. All but the FP32 sums
/// is then exact. It is x's dtype, or float32 without bfloat16 instructions or if a scale is not a
/// power of two.
at::ScalarType emulation_dtype(const at::Tensor& x, const OperandRecipe& a, const OperandRecipe& b);

}  // namespace dovetail::mx
