#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dovetail/mx/recipe.h"
#include "dovetail/mx/statistics.h"
#include "dovetail/mx/tensor.h"
#include "dovetail/ops/row_operation.h"

/// One tensor of a Linear as its products read it, whatever its recipe's format.
namespace dovetail::mx {

/// What to make of it: the numbers that its codes stand for, with blocks along its rows or its
/// columns; codes with blocks along its columns, to be kept.
struct OperandRequest {
  bool row = false, column = false, kept = false;
  bool as_codes = false;  ///< row and column in place of numbers, for native products
  uint64_t seed = 0;      ///< of stochastic rounding
  float amax = 0;         ///< of delayed scaling; 0: the tensor's own
  bool count = true;      ///< see QuantizeSpec
};

struct OperandCopies {
  at::Tensor row, column;    ///< as `emulation_dtype` has it, or narrower where that is exact; one
                             ///< tensor if they agree
  at::Tensor codes, scales;  ///< the kept copy
  Statistics statistics;     ///< of the row copy if there is one
  MXTensor row_codes, column_codes;  ///< in place of row and column
};

/// x (rows, cols), float32 or bfloat16, of a recipe with a format.
OperandCopies quantize_operand(const at::Tensor& x, const OperandRecipe& recipe,
                               const OperandRequest& request);

/// The same of rows that are made when they are read, of a microscaling recipe.
OperandCopies quantize_operand(const MadeRows& x, const OperandRecipe& recipe,
                               const OperandRequest& request);

/// The numbers of a kept copy.
at::Tensor dequantize_kept(const at::Tensor& codes, const at::Tensor& scales,
                           const OperandRecipe& recipe, at::ScalarType dtype);

/// True if products on the CPU are emulated in bfloat16: with AVX-512 and its BF16 instructions.
bool emulates_in_bfloat16();

/// The dtype in which a product of two such operands is emulated so that it is exact but for the
/// FP32 sums: that of x unless the CPU has no bfloat16 instructions or a scale is not a power of
/// two.
at::ScalarType emulation_dtype(const at::Tensor& x, const OperandRecipe& a, const OperandRecipe& b);

}  // namespace dovetail::mx
