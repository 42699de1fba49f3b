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

/// Quantization statistics of a Linear's tensors since `begin_step`. Weight (most recent) and
/// activation: the copies that forward reads. Gradient: the copy that the input's gradient reads.
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

/// Linear whose operands are quantized along the reduction of each product:
///
/// ```
/// y  = row(x)  row(weight)^T    // blocks along `in`
/// dx = row(dy) col(weight)      // blocks along `out`
/// dw = col(dy)^T col(x)         // blocks along the tokens
/// ```
///
/// Row and column copies come from one read of a tensor. Only the column copy of x is kept for
/// backward. Consecutive Linears that read the same x share it. In two cases, another tensor is
/// kept, and backward makes the column copy:
/// - x itself, if it stays in memory anyway (`input_stays`),
/// - the prologue's input, which the prologue's own backward needs anyway.
///
/// In a recorded step (base/operation.h), making the column copy is a separate operation of
/// backward. On the CPU, the prologue's result never exists as a whole. The quantizer reads it a
/// few rows at a time.
///
/// Products are emulated: operands are dequantized to bfloat16, in which every format is exact (see
/// `dequantize`). Sums are in FP32. Operands are float32 on a CPU without bfloat16 instructions,
/// for float32 x, or if a scale is not a power of two. The weight's copies are not kept between
/// products. Quantizing it again takes less time than dequantizing a copy.
///
/// On a GPU of compute capability 8.9, FP8 recipes multiply codes with at::_scaled_mm; blocks of
/// 128 need 9.0. This requires x in bfloat16, three FP8 operands, and sizes divisible by 16 (by 128
/// with blocks). Other FP8 products are emulated there, too. Native products (`native_product`)
/// read the codes of all three operands.
class QuantizedLinear : public std::enable_shared_from_this<QuantizedLinear> {
 public:
  /// `name` is the layer's name, for error messages. `input_stays`: the operation that makes x
  /// keeps x for its own backward.
  QuantizedLinear(const LinearRecipe& recipe, std::string name, Gemm gemm = Gemm::kEmulated,
                  bool input_stays = false);

  /// Activation or norm between x and the product. Its result is not kept.
  using Prologue = std::shared_ptr<const ops::RowOperation>;

  /// Returns y (..., out) for x (..., in). `prologue`, if not null, is applied to x first. `weight`
  /// is (out, in); `bias` is (out) or undefined. All are float32 or all bfloat16, on the CPU or a
  /// GPU. On the meta device, only shapes are computed. Throws UserError naming the layer.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                     const Prologue& prologue = nullptr);

  const LinearRecipe& recipe() const { return recipe_; }

  /// Begins a step and clears the statistics. Stochastic rounding then depends only on `seed` and
  /// the order of backward calls. Without `count`, a GPU counts nothing, and nothing waits for it.
  void begin_step(uint64_t seed, bool count = true);
  LinearStatistics statistics() const;

  /// Delayed scaling of an operand: its largest magnitudes in earlier steps, (history) float32 on
  /// CPU, newest first. The caller saves it. Undefined if the operand's own magnitude sets the
  /// scale. Zeros mean unknown; if all are unknown, the scale is 1. Source: delayed scaling of
  /// TransformerEngine.
  at::Tensor& amax_history(Operand operand) {
    return amax_histories_[static_cast<size_t>(operand)];
  }
  /// Adds the magnitude of a finished step to the history. It is the largest in the statistics of
  /// all ranks.
  void remember_amax(Operand operand, float amax);

 private:
  friend class QuantizedLinearFunction;
  float amax_for(Operand operand) const;
  /// Codes of x (rows, cols) and of its transpose. Scales have the layout of at::_scaled_mm_v2.
  struct Codes {
    at::Tensor row, column, row_scales, column_scales;
  };
  /// Returns true if products of these sizes multiply FP8 codes.
  bool multiplies_float8(const at::Tensor& x, int64_t rows, const at::Tensor& weight) const;
  Codes float8_codes(Operand operand, const at::Tensor& x);
  /// Raises the largest magnitude that statistics() reports for a tensor on a GPU. For delayed
  /// scaling.
  void see(Operand operand, const at::Tensor& amax);

  /// One quantization of an activation or gradient, numbered within the step. A recorded
  /// quantization may run more than once. It has its own place for counts, so that a second run
  /// does not count twice.
  struct Call {
    uint64_t number = 0;
    bool recorded = false;
    bool counts = true;  ///< false: the same tensor again, for another copy
  };
  Call next_call(Operand operand);
  /// Returns true if backward makes the column copy in a recorded step. The plan then decides how
  /// to store x (tokens, in) until then: as it is, packed as these codes, or recomputed. Quantizing
  /// the numbers of these codes again must give the same numbers. This holds in float32, which can
  /// represent all of them, and in bfloat16 for bfloat16 x (tests/plan/codec_test.cpp).
  bool leaves_column_to_plan(const at::Tensor& x) const;

  /// Makes copies of x, a tensor or MadeRows, and counts them.
  template <class X>
  OperandCopies quantized(Operand operand, const X& x, OperandRequest request, const Call& call);
  /// Makes the column copy of an activation that forward has already counted.
  template <class X>
  OperandCopies activation_again(const X& x);
  /// Makes the weight's row or column copy for a product.
  OperandCopies weight_copies(const at::Tensor& weight, const OperandRequest& request);

  LinearRecipe recipe_;
  std::string name_;
  Gemm gemm_;
  bool input_stays_;
  // Arrays are indexed by Operand. `recorded_`: statistics of each recorded call, in the order of
  // the calls.
  LinearStatistics statistics_;
  std::array<std::vector<Statistics>, 3> recorded_;
  std::array<uint64_t, 3> calls_{};
  std::array<at::Tensor, 3> amax_histories_;
  /// Largest magnitudes of the step, on a GPU. For delayed scaling only.
  std::array<at::Tensor, 3> seen_;
  uint64_t seed_ = 0;
  bool count_ = true;
};

}  // namespace dovetail::mx
