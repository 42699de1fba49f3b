#pragma once

#include <ATen/core/Tensor.h>

#include "dovetail/mx/format.h"
#include "dovetail/mx/nvfp4_simd.h"
#include "dovetail/mx/statistics.h"

/// NVFP4: E2M1 elements in blocks of 16. A block has an E4M3 scale, and the tensor a float32 scale.
///
/// Sources: NVIDIA, "Pretraining Large Language Models with NVFP4" (arXiv 2509.25149), for the
/// format and its use in training. Order of float32 operations: `nvfp4_quantize` and
/// `per_tensor_amax_to_scale` of torchao.
namespace dovetail::mx {

/// Elements that share one E4M3 scale.
///   kRow     16 neighbours along the last dimension
///   kColumn  16 neighbours along the first dimension
///   kSquare  16 x 16 elements of a matrix, for weights that are read both ways
enum class Nvfp4Blocks { kRow, kColumn, kSquare };

/// Source of the tensor scale.
///   kAmax   max(amax, 2^-80) / (448 * 6), with the tensor's largest finite magnitude amax
///   kGiven  `Nvfp4Spec::tensor_scale`
///   kNone   No tensor scale; block scales alone
enum class TensorScale { kAmax, kGiven, kNone };

struct Nvfp4Spec {
  Nvfp4Blocks blocks = Nvfp4Blocks::kRow;
  TensorScale scaling = TensorScale::kAmax;
  /// For kGiven: float32 scalar between `kSmallestTensorScale` and `kLargestTensorScale`.
  at::Tensor tensor_scale = {};
  NonFinite non_finite = NonFinite::kPoison;
  Rounding rounding = Rounding::kNearestEven;
  uint64_t seed = 0;    ///< seed of stochastic rounding
  bool values = false;  ///< return dequantized numbers instead of codes
};
/// Limits of a tensor scale. Within them, neither it nor its reciprocal is subnormal.
constexpr float kSmallestTensorScale = 0x1p-92F, kLargestTensorScale = 0x1p117F;

/// Tensor in NVFP4. An element is the number of its code times its block's scale times the tensor's
/// scale.
struct Nvfp4Tensor {
  at::Tensor codes;  ///< shape of x, uint8, one E2M1 code each
  /// uint8, one E4M3 code each. kRow: (..., ceil(last / 16)); kColumn: (ceil(first / 16), ...);
  /// kSquare: (ceil(rows / 16), ceil(cols / 16)).
  at::Tensor scales;
  at::Tensor tensor_scale;  ///< float32 scalar; undefined without a tensor scale
  Nvfp4Blocks blocks = Nvfp4Blocks::kRow;
};

/// Result of quantize_nvfp4: codes, or values if the spec requests them.
struct Nvfp4 {
  Nvfp4Tensor tensor;  ///< if values were requested, `codes` is undefined
  /// E2M1 number times block scale, in x's dtype, without the tensor scale. A product of 2 and 4
  /// significant bits is exact in bfloat16.
  at::Tensor values;
  /// `min_scale` and `max_scale` are exponent fields of block scale times tensor scale, as float32.
  Statistics statistics;
};

/// Quantizes `x`, with t the tensor scale (1 if there is none), in float32 operations:
/// 1. The block scale s is amax of the block / 6 / t, clamped to [2^-6, 448], rounded to E4M3.
/// 2. The factor r is (1 / t) / s.
/// 3. A code is x * r, rounded to E2M1 (to nearest even, or stochastically). It saturates at 6.
///
/// s is rounded to nearest, so the largest elements of a block can exceed 6 s t. They saturate,
/// also under stochastic rounding.
///
/// A short last block is quantized as if padded with zeros. With NonFinite::kPoison, a block with a
/// NaN or an infinity gets codes 0 and scale NaN (0x7f). With kSaturate, such elements get the
/// largest magnitude with their sign. In stochastic rounding, element i of x in row-major order
/// reads the random word that `quantize` (quantize.h) reads. It treats subnormal elements as zero.
///
/// x has at least one dimension (kSquare: two), float32 or bfloat16, any strides, on the CPU. The
/// result depends neither on threads nor on the instruction set. Throws UserError for another
/// tensor, naming it.
Nvfp4 quantize_nvfp4(const at::Tensor& x, const Nvfp4Spec& spec = {});

/// Returns float32(tensor scale * block scale) * element, as float32 or bfloat16.
at::Tensor dequantize(const Nvfp4Tensor& x, at::ScalarType dtype = at::kFloat);

/// Seed of the signs that training uses. One sign vector for all Linears and steps suffices
/// (arXiv 2509.25149).
constexpr uint64_t kHadamardSeed = 0;

/// Random Hadamard transform: replaces each 16 neighbours v along the first dimension by H D v.
/// H is the 16 x 16 Hadamard matrix / 4, in Sylvester's order. D has 16 random signs on its
/// diagonal, bits 0 to 15 of word 0 of `Philox4x32-10(seed, 0, RandomStream::kQuantize)`.
///
/// H D is orthogonal. So a product over the first dimension does not change if both operands are
/// transformed. Outliers spread over their block (arXiv 2509.25149).
///
/// x       (rows, ...), float32 or bfloat16, on the CPU.
/// returns (16 ceil(rows / 16), ...), float32. Missing rows count as zeros.
at::Tensor random_hadamard(const at::Tensor& x, uint64_t seed = kHadamardSeed);

}  // namespace dovetail::mx
