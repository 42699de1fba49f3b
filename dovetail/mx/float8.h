#pragma once

#include <ATen/core/Tensor.h>

#include "dovetail/mx/format.h"
#include "dovetail/mx/statistics.h"

/// FP8 as matrix units before microscaling read it: E4M3 or E5M2 with one float32 scale for the
/// whole tensor, or for blocks of 128.
namespace dovetail::mx {

/// Which elements share a scale: all; 128 along the last dimension, or along the first; squares of
/// a matrix.
enum class Float8Blocks { kTensor, kRow, kColumn, kSquare };
constexpr int64_t kFloat8Block = 128;

/// torch's dtype of codes: e4m3 or e5m2.
at::ScalarType float8_type(Format format);

struct Float8Spec {
  Format format = Format::kE4M3;  ///< or kE5M2
  Float8Blocks blocks = Float8Blocks::kTensor;
  bool power_of_two = false;  ///< scales are rounded up to powers of two
  /// Delayed scaling, kTensor only: this stands for the largest magnitude, and elements beyond it
  /// saturate. 0: its own.
  float amax = 0;
  bool values = false;  ///< not codes but the numbers they stand for
};

/// Codes in the tensor's own shape and order; scales float32, what codes are multiplied by: one for
/// a whole tensor,
/// (..., ceil(last / 128)), (ceil(first / 128), ...) or (ceil(rows / 128), ceil(cols / 128)).
struct Float8Tensor {
  at::Tensor codes, scales;
  Format format = Format::kE4M3;
  Float8Blocks blocks = Float8Blocks::kTensor;
};

/// `values`, in place of codes if asked for: float32, or with power-of-two scales, where they are
/// exact, of x's dtype.
struct Float8 {
  Float8Tensor tensor;
  at::Tensor values;
  Statistics statistics;  ///< scales as their exponents, rounded down
};

/// Quantize `x`: code = x * s rounded to nearest even and saturated, s = float32(largest number of
/// the format / largest magnitude of the block), with `power_of_two` rounded down to one; the
/// stored scale is float32(1 / s). Magnitudes below 2^-80 count as that when s is chosen. A block
/// with a NaN or an infinity has codes 0 and the scale NaN.
///
/// x: at least one dimension (kSquare: two); float32 or bfloat16, any strides, on the CPU or a GPU,
/// where nothing is counted. Throws UserError for what cannot be quantized, naming it. The result
/// does not depend on threads or instruction set. Sources: Micikevicius et al., "FP8 Formats for
/// Deep Learning" (arXiv 2209.05433); blocks as in DeepSeek-V3 (arXiv 2412.19437, section 3.3.2).
Float8 quantize_float8(const at::Tensor& x, const Float8Spec& spec);

/// float32(code * scale), as float32 or bfloat16.
at::Tensor dequantize(const Float8Tensor& x, at::ScalarType dtype = at::kFloat);

}  // namespace dovetail::mx
