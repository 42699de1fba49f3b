#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/mx/amax_history.h"
#include "dovetail/mx/native.h"
#include "dovetail/mx/operand.h"
#include "dovetail/mx/recipe.h"
#include "dovetail/mx/tensor.h"

namespace dovetail::mx {

/// Statistics of a Linear's quantizations since `begin_step`.
/// - weight: only the most recent quantization of the weight for forward.
/// - activation: sum over all quantizations of x for forward.
/// - gradient: sum over all quantizations of dy for the product that gives dx.
struct LinearStatistics {
  Statistics weight, activation, gradient;

  /// Returns the statistics of one operand.
  Statistics& of(Operand operand) {
    return operand == Operand::kWeight       ? weight
           : operand == Operand::kActivation ? activation
                                             : gradient;
  }
  const Statistics& of(Operand operand) const {
    return const_cast<LinearStatistics*>(this)->of(operand);
  }
};

/// Linear whose operands are quantized along the reduction of each product. Here, row(x) is x
/// quantized with blocks along its rows. Likewise, col(x) has blocks along its columns.
///
/// ```
/// y  = row(x)  row(weight)^T    // blocks along `in`
/// dx = row(dy) col(weight)      // blocks along `out`
/// dw = col(dy)^T col(x)         // blocks along the tokens
/// ```
///
/// Row and column copies come from one read of a tensor. An activation or norm that precedes the
/// product can be passed as its prologue. For backward, only the column copy of x is kept.
/// Consecutive Linears that read the same x share this copy. In two cases, another tensor is kept
/// instead, and backward makes the column copy from that tensor. With NVFP4 (nvfp4.h) that is
/// always so:
/// - x itself, if it stays in memory anyway (`input_stays`),
/// - the prologue's input, which the prologue's own backward needs anyway.
///
/// A recorded step is a training step captured as a list of operations (base/operation.h). In a
/// recorded step, a separate operation of backward makes the column copy. On the CPU, the
/// prologue's result never exists as a whole: the quantizer reads it a few rows at a time. On a GPU
/// this holds for activations: the quantizer computes them (`MadeRows::on_gpu`).
///
/// Products are computed in one of three ways:
/// - Native products (native.h) read codes. They are used for all products with Gemm::kNative. All
///   three operands must then be quantized.
/// - FP8 products on a GPU multiply codes directly with at::_scaled_mm_v2. This requires x in
///   bfloat16, three FP8 operands, and sizes divisible by 16 (by 128 with blocks). One scale for
///   the whole tensor needs compute capability 8.9 or later; blocks of 128 need 9.0.
/// - All other products are emulated: operands are dequantized to `emulation_dtype` (operand.h), in
///   which they are exact. Sums are in FP32. Tensor scales of NVFP4 multiply these sums. NVFP4
///   runs on the CPU only.
///
/// The weight's copies are not kept between products. Quantizing the weight again takes less time
/// than dequantizing a copy.
class QuantizedLinear : public std::enable_shared_from_this<QuantizedLinear> {
 public:
  /// `name` is the layer's name, for error messages. `input_stays`: the operation that makes x
  /// keeps x for its own backward.
  QuantizedLinear(const LinearRecipe& recipe, std::string name, Gemm gemm = Gemm::kEmulated,
                  bool input_stays = false);

  /// Activation or norm that is applied to x before the product. Its result is not kept.
  using Prologue = std::shared_ptr<const ops::RowOperation>;

  /// Returns y (..., out) for x (..., in). `prologue`, if not null, is applied to x first. `weight`
  /// is (out, in); `bias` is (out) or undefined. All tensors have one dtype, float32 or bfloat16,
  /// and are on the CPU or a GPU. On the meta device, only shapes are computed. Throws UserError,
  /// naming the layer, for other tensors.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                     const Prologue& prologue = nullptr);

  /// Throws UserError, naming the layer, if `forward` cannot compute with these tensors.
  void check(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
             const Prologue& prologue = nullptr) const;

  /// Results of forward without autograd. `codes` and `scales` are the column copy of x. Both are
  /// undefined if the copy was not requested.
  /// - codes: uint8 (tokens, in). For FP8 products on a GPU, the bytes are in the order (in,
  /// tokens).
  /// - scales: `kept_scales` describes them.
  struct Products {
    at::Tensor y, codes, scales;
  };
  /// Computes y (tokens, out) for x (tokens, in). `keeps_column`: also return the column copy.
  /// Arguments must have passed `check`.
  Products multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    bool keeps_column);
  /// Results of backward without autograd. A gradient that was not requested is undefined.
  struct Gradients {
    at::Tensor x, weight, bias;
  };
  struct WantedGradients {
    bool x = false, weight = false, bias = false;
  };
  /// Computes gradients from dy (tokens, out). `kept` and `scales` are the column copy that
  /// `multiply` returned. Without OperandRecipe::keeps_codes, `kept` is x itself. Both are
  /// read only for the gradient of the weight.
  Gradients differentiate(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& kept,
                          const at::Tensor& scales, const WantedGradients& wanted);

  const LinearRecipe& recipe() const { return recipe_; }

  /// Begins a step and clears the statistics. In the step, stochastic rounding depends only on
  /// `seed` and the order of backward calls. If `count` is false, a GPU counts no statistics, and
  /// nothing waits for it.
  void begin_step(uint64_t seed, bool count = true);
  LinearStatistics statistics() const;

  /// Sets the magnitudes from which the scale of an operand follows, and where this step's
  /// magnitudes are collected. The recipe must give the operand a history. Without this call, the
  /// scale of delayed scaling is 1. The owner of the tensors, an AmaxHistories, begins and ends
  /// steps.
  void set_delayed(Operand operand, const DelayedScaling& delayed) {
    delayed_[static_cast<size_t>(operand)] = delayed;
  }

 private:
  friend class QuantizedLinearFunction;
  friend struct LinearProducts;
  friend class LinearGroup;
  friend class LinearGroupFunction;
  /// Returns the operand's delayed scaling on the device of x. Its tensors are undefined without
  /// delayed scaling.
  const DelayedScaling& delayed(Operand operand, at::Device device);
  /// FP8 codes of x (rows, cols) in `row`, and of the transpose of x in `column`. Scales have the
  /// layout that at::_scaled_mm_v2 reads.
  struct Codes {
    at::Tensor row, column, row_scales, column_scales;
    at::Tensor most;  ///< largest magnitude of x as float32 bits, if the scales follow from it
  };
  /// Returns true if the products of x (with `rows` rows) and `weight` multiply FP8 codes directly.
  bool multiplies_float8(const at::Tensor& x, int64_t rows, const at::Tensor& weight) const;
  /// Returns true if the quantizer of activations computes the rows of `prologue` applied to x.
  bool reads_rows(const ops::RowOperation& prologue, const at::Tensor& x,
                  const at::Tensor& weight) const;
  /// Quantizes an operand to FP8 codes for at::_scaled_mm_v2, on a GPU. `row`, `column`: copies to
  /// make. `most`: Codes::most of an earlier call for the same tensor, or undefined.
  struct CodesRequest {
    bool row = false, column = false;
    at::Tensor most = {};
  };
  Codes float8_codes(Operand operand, const at::Tensor& x, const CodesRequest& request);
  Codes float8_codes(Operand operand, const ops::MadeRows& x, const CodesRequest& request);
  /// Does the same for a matrix (rows, cols): x, or `activation` of x. x is contiguous and aligned
  /// to 16 bytes.
  Codes float8_codes(Operand operand, const at::Tensor& x, int64_t rows, int64_t cols,
                     std::optional<ops::Activation> activation, const CodesRequest& request);

  /// Identifies one quantization of an activation or gradient.
  struct Call {
    uint64_t number = 0;  ///< index among the operand's quantizations in this step, from 0
    /// Part of a recorded step. Its operation may run more than once. Each run replaces entry
    /// `number` of `recorded_`, so that a second run does not count twice.
    bool recorded = false;
    bool counts = true;  ///< false: another copy of a tensor that is already counted
  };
  Call next_call(Operand operand);
  /// Returns true if backward makes the column copy of x in a recorded step. The step's memory plan
  /// then decides how backward gets x (tokens, in). The plan keeps x, recomputes x, or packs x as
  /// the codes of its column copy. Packing requires that quantizing the dequantized numbers gives
  /// the same numbers again. This holds in float32, which can represent all of them. It also holds
  /// in bfloat16 if x is bfloat16 (tests/plan/codec_test.cpp).
  bool leaves_column_to_plan(const at::Tensor& x) const;

  /// Makes the copies of x that `request` names and adds to the statistics. x is a tensor or
  /// MadeRows.
  template <class X>
  OperandCopies quantized(Operand operand, const X& x, OperandRequest request, const Call& call);
  /// Adds the statistics of one quantization. `row`: a row copy was made.
  void record(Operand operand, bool row, const Call& call, const Statistics& statistics);
  /// Makes the column copy of an activation for a product in `dtype`. Does not count statistics,
  /// since forward counted them.
  template <class X>
  OperandCopies requantized_activation(const X& x, at::ScalarType dtype);
  /// Makes the weight's row or column copy for a product. Returns the weight itself if the recipe
  /// does not quantize it.
  OperandCopies weight_copies(const at::Tensor& weight, const OperandRequest& request);

  LinearRecipe recipe_;
  std::string name_;
  Gemm gemm_;
  bool input_stays_;
  // The arrays below are indexed by Operand. `statistics_` covers all quantizations of weights. It
  // covers quantizations of activations and gradients only outside recorded steps.
  LinearStatistics statistics_;
  std::array<std::vector<Statistics>, 3> recorded_;  ///< statistics by Call::number
  /// Number of quantizations of the operand in this step: the next Call::number.
  std::array<uint64_t, 3> calls_{};
  std::array<DelayedScaling, 3> delayed_;
  uint64_t seed_ = 0;
  bool count_ = true;
};

/// Dtype and shape of the scales of a column copy.
struct KeptScales {
  at::ScalarType dtype = at::kByte;
  int64_t block = kBlock;  ///< tokens that share a scale; 0: the whole tensor has one
};
/// Returns them for activations of `recipe`. The shape is (ceil(tokens / block), in), or () if
/// `block` is 0.
KeptScales kept_scales(const OperandRecipe& recipe);

}  // namespace dovetail::mx
