#pragma once

#include <ATen/core/Tensor.h>

#include "dovetail/mx/format.h"
#include "dovetail/mx/statistics.h"

/// FP8 as matrix units read it before microscaling: E4M3 or E5M2. One float32 scale covers the
/// whole tensor or a block of 128.
namespace dovetail::mx {

/// Elements that share a scale: the whole tensor; 128 along the last dimension; 128 along the
/// first; 128 x 128 of a matrix.
enum class Float8Blocks { kTensor, kRow, kColumn, kSquare };
constexpr int64_t kFloat8Block = 128;

/// Returns torch's dtype for codes: e4m3 or e5m2.
at::ScalarType float8_type(Format format);

struct Float8Spec {
  Format format = Format::kE4M3;  ///< kE4M3 or kE5M2
  Float8Blocks blocks = Float8Blocks::kTensor;
  bool power_of_two = false;  ///< round scales up to powers of two
  /// Delayed scaling, kTensor only. Used instead of the tensor's largest magnitude; larger elements
  /// saturate. 0: use the tensor's own.
  float amax = 0;
  bool values = false;  ///< return dequantized numbers instead of codes
};

/// Codes in the tensor's own shape and order, with float32 scales. An element is its code times its
/// scale. Shape of the scales: one for a whole tensor, (..., ceil(last / 128)), (ceil(first / 128),
/// ...) or (ceil(rows / 128), ceil(cols / 128)).
struct Float8Tensor {
  at::Tensor codes, scales;
  Format format = Format::kE4M3;
  Float8Blocks blocks = Float8Blocks::kTensor;
};

/// Result of quantize_float8. `values`, if requested, replaces the codes. It is float32, or x's
/// dtype for power-of-two scales, which make it exact.
struct Float8 {
  Float8Tensor tensor;
  at::Tensor values;
  Statistics statistics;  ///< the scales in it are their exponents, rounded down
};

/// Quantizes `x`: code = x * s, rounded to nearest even and saturated. s is float32(largest number
/// of the format / largest magnitude of the block). With `power_of_two`, s is rounded down to a
/// power of two. The stored scale is float32(1 / s). Magnitudes below 2^-80 count as 2^-80 when s
/// is chosen. A block with a NaN or an infinity gets codes 0 and scale NaN.
///
/// x has at least one dimension (kSquare: two), float32 or bfloat16, any strides, on the CPU or a
/// GPU. On a GPU nothing is counted. Throws UserError for an unsupported tensor, naming it. The
/// result does not depend on threads or instruction set. Sources: Micikevicius et al., "FP8 Formats
/// for Deep Learning" (arXiv 2209.05433); blocks as in DeepSeek-V3 (arXiv 2412.19437, section
/// 3.3.2).
Float8 quantize_float8(const at::Tensor& x, const Float8Spec& spec);

/// Returns float32(code * scale) as float32 or bfloat16.
at::Tensor dequantize(const Float8Tensor& x, at::ScalarType dtype = at::kFloat);

}  // namespace dovetail::mx
