#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/mx/native.h"
#include "dovetail/mx/operand.h"
#include "dovetail/mx/recipe.h"

namespace dovetail::mx {

/// What the tensors of a Linear went through since `begin_step`: weight (last seen) and activation
/// in forward's orientation, gradient in that of the input's gradient.
struct LinearStatistics {
  Statistics weight, activation, gradient;

  Statistics& of(Operand operand) {
    return operand == Operand::kWeight       ? weight
           : operand == Operand::kActivation ? activation
                                             : gradient;
  }
  const Statistics& of(Operand operand) const {
    return const_cast<LinearStatistics*>(this)->of(operand);
  }
};

/// A Linear whose operands are quantized along the reduction of each product:
///
///     y  = row(x)  row(weight)^T         blocks along `in`
///     dx = row(dy) col(weight)           blocks along `out`
///     dw = col(dy)^T col(x)              blocks along the tokens
///
/// Row and column copies are made from one read of the tensor. Backward keeps the column copy of x
/// alone, and Linears that read the same x one after another share it. Where x stays in any case,
/// backward keeps that instead, and where there is a prologue what the prologue read, which the
/// prologue's own backward needs anyhow; the column copy is made then. In a recorded step the
/// column copy is an operation of backward. On the CPU the prologue's result never exists: the
/// quantizer takes it a few rows at a time.
///
/// Products are emulated: what is quantized goes on as bfloat16, in which every format is exact
/// (see `dequantize`), and is added up in FP32; on a CPU without bfloat16 instructions, for float32
/// x, and where a scale is not a power of two, as float32. No copy of the weight is kept from one
/// product to the next: quantizing it again takes less time than dequantizing a copy. On a GPU of
/// compute capability 8.9 FP8 recipes multiply codes by at::_scaled_mm; blocks of 128 need 9.0.
/// That takes x in bfloat16, three FP8 operands, and sizes that divide by 16, with blocks by 128.
/// Other FP8 products are emulated there, too. Native products (`native_product`) read the codes
/// themselves, all three of them or none.
class QuantizedLinear : public std::enable_shared_from_this<QuantizedLinear> {
 public:
  /// `name` is the layer's, for messages. `input_stays`: the backward pass of what makes x keeps x
  /// anyhow.
  QuantizedLinear(const LinearRecipe& recipe, std::string name, Gemm gemm = Gemm::kEmulated,
                  bool input_stays = false);

  /// An activation or a norm between x and the product; its result is not kept.
  using Prologue = std::shared_ptr<const RowOperation>;

  /// x (..., in), or what `prologue` turns into that; weight (out, in); bias (out) or undefined;
  /// float32 or bfloat16, all of one dtype, on the CPU or a GPU. y (..., out). The meta device
  /// gives shapes. Throws UserError naming the layer.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                     const Prologue& prologue = nullptr);

  const LinearRecipe& recipe() const { return recipe_; }

  /// Begins a step: statistics are empty again, and stochastic rounding follows from `seed` and the
  /// order of backward calls alone. Without `count` a GPU counts nothing and is not waited for.
  void begin_step(uint64_t seed, bool count = true);
  LinearStatistics statistics() const;

  /// Delayed scaling of an operand: its largest magnitudes in earlier steps, (history) float32 on
  /// CPU, newest first, for the caller to keep; undefined where its own magnitude sets the scale.
  /// Zeros say nothing; where nothing is known the scale is 1. Source: delayed scaling of
  /// TransformerEngine.
  at::Tensor& amax_history(Operand operand) {
    return amax_histories_[static_cast<size_t>(operand)];
  }
  /// Puts the magnitude of a finished step, the largest in the statistics of all ranks, into the
  /// history.
  void remember_amax(Operand operand, float amax);

 private:
  friend class QuantizedLinearFunction;
  float amax_for(Operand operand) const;
  /// Codes of x (rows, cols) and of its transpose, with scales as at::_scaled_mm_v2 takes them.
  struct Codes {
    at::Tensor row, column, row_scales, column_scales;
  };
  /// True if products of these sizes multiply FP8 codes.
  bool multiplies_float8(const at::Tensor& x, int64_t rows, const at::Tensor& weight) const;
  Codes float8_codes(Operand operand, const at::Tensor& x);
  /// Raises what statistics() reports of a tensor on a GPU, for delayed scaling.
  void see(Operand operand, const at::Tensor& amax);

  /// A quantization of an activation or a gradient: its number among those of the step. A recorded
  /// one may run again, and counts at a place of its own, so that it counts the same again.
  struct Call {
    uint64_t number = 0;
    bool recorded = false;
    bool counts = true;  ///< false: the same tensor again, for another copy
  };
  Call next_call(Operand operand);
  /// Whether in a recorded step backward makes the column copy, so that the plan decides how x
  /// (tokens, in) waits for it: as it is, packed in just these codes, or made again. Only where
  /// codes of codes are read as the same numbers: as float32, which holds all of them, or in
  /// bfloat16, of bfloat16 x (tests/plan/codec_test.cpp).
  bool leaves_column_to_plan(const at::Tensor& x) const;

  /// Copies of x, a tensor or MadeRows, counted.
  template <class X>
  OperandCopies quantized(Operand operand, const X& x, OperandRequest request, const Call& call);
  /// The column copy of an activation that forward has counted.
  template <class X>
  OperandCopies activation_again(const X& x);
  /// The weight as a product reads it, by row or by column.
  OperandCopies weight_copies(const at::Tensor& weight, const OperandRequest& request);

  LinearRecipe recipe_;
  std::string name_;
  Gemm gemm_;
  bool input_stays_;
  // By Operand. `recorded_`: of each recorded call, in the order of the calls.
  LinearStatistics statistics_;
  std::array<std::vector<Statistics>, 3> recorded_;
  std::array<uint64_t, 3> calls_{};
  std::array<at::Tensor, 3> amax_histories_;
  std::array<at::Tensor, 3>
      seen_;  ///< largest magnitudes of the step, on a GPU; delayed scaling only
  uint64_t seed_ = 0;
  bool count_ = true;
};

}  // namespace dovetail::mx
