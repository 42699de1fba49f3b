#pragma once

#include <ATen/core/Tensor.h>

#include "dovetail/mx/codec.h"
#include "dovetail/mx/format.h"
#include "dovetail/mx/statistics.h"

/// FP8 (E4M3 or E5M2) with float32 scales, as tensor cores read it before they supported
/// microscaling. One scale covers the whole tensor, or a block of 128 or 128 x 128 elements.
namespace dovetail::mx {

/// Elements that share one scale.
///   kTensor  the whole tensor
///   kRow     128 neighbours along the last dimension
///   kColumn  128 neighbours along the first dimension
///   kSquare  128 x 128 elements of a matrix
enum class Float8Blocks { kTensor, kRow, kColumn, kSquare };

/// Returns torch's dtype for the codes of a format: float8_e5m2 for E5M2, float8_e4m3fn for E4M3.
at::ScalarType float8_type(Format format);

struct Float8Spec {
  Format format = Format::kE4M3;  ///< kE4M3 or kE5M2
  Float8Blocks blocks = Float8Blocks::kTensor;
  bool power_of_two = false;  ///< round scales up to powers of two
  /// Delayed scaling (kTensor only): largest magnitude in earlier steps, a float32 scalar on x's
  /// device, above 0. The scale is computed from it, and larger elements saturate. Undefined: the
  /// scale is computed from the tensor's own largest magnitude.
  at::Tensor amax = {};
  bool values = false;  ///< return dequantized numbers instead of codes
  /// With `values`: return float32 numbers, also where the numbers are exact in bfloat16.
  bool wide = false;
  /// With `values` and kTensor, on a CPU: do not multiply the numbers by the scale. They are then
  /// exact in x's dtype.
  bool unscaled = false;
  /// A second copy, from the same read of x. It has blocks kColumn if `blocks` is kRow; x
  /// must then be a matrix. Otherwise it has the same blocks. Statistics do not count it.
  enum class Second { kNone, kCodes, kValues } second = Second::kNone;
};

/// Tensor quantized to FP8. An element is the number of its code times its scale. `codes` are uint8
/// in the tensor's own shape and order. `scales` are float32. Their shape depends on `blocks`:
///   kTensor  (): one scale
///   kRow     (..., ceil(last / 128))
///   kColumn  (ceil(first / 128), ...)
///   kSquare  (ceil(rows / 128), ceil(cols / 128))
struct Float8Tensor {
  at::Tensor codes, scales;
  Format format = Format::kE4M3;
  Float8Blocks blocks = Float8Blocks::kTensor;
};

/// One quantized copy of a tensor: either codes in `tensor`, or `values` if dequantized numbers
/// were requested. The scales are in `tensor` in both cases.
struct Float8Copy {
  Float8Tensor tensor;
  /// The numbers have x's dtype if they are exact in it. This holds for scales that are powers of
  /// two, and for numbers that are not multiplied by their scale. Otherwise, and if the spec
  /// requests it, they are float32.
  at::Tensor values;
};

/// Result of quantize_float8.
struct Float8 : Float8Copy {
  Float8Copy second;  ///< see Float8Spec::second
  /// Counts of the quantization. Its `min_scale` and `max_scale` are the exponent fields of the
  /// smallest and largest float32 scale. So they stand for these scales rounded down to powers of
  /// two.
  Statistics statistics;
};

/// Quantizes `x`, block by block, in these steps:
/// 1. amax is the block's largest magnitude, or `spec.amax` if that is defined. If amax is below
///    2^-80, it is set to 2^-80.
/// 2. s is float32(largest number of the format / amax). With `power_of_two`, s is rounded down
///    to a power of two.
/// 3. Each code is x * s, rounded to nearest even and saturated.
/// 4. The stored scale is float32(1 / s).
///
/// A block with a NaN or an infinity gets codes 0 and scale NaN.
///
/// x has at least one dimension (kSquare: two), float32 or bfloat16, any strides, on the CPU or a
/// GPU. On a GPU, the statistics stay empty. Throws UserError for an unsupported tensor, naming it.
/// The result does not depend on threads or instruction set. Sources: Micikevicius et al., "FP8
/// Formats for Deep Learning" (arXiv 2209.05433); blocks as in DeepSeek-V3 (arXiv 2412.19437,
/// section 3.3.2).
Float8 quantize_float8(const at::Tensor& x, const Float8Spec& spec);

/// Returns the numbers that the codes stand for, float32(code * scale), as float32 or bfloat16.
at::Tensor dequantize(const Float8Tensor& x, at::ScalarType dtype = at::kFloat);
/// Returns the numbers of the codes without their scales, as float32 or bfloat16.
at::Tensor dequantize_unscaled(const Float8Tensor& x, at::ScalarType dtype);

}  // namespace dovetail::mx
