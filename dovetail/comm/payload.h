#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace dovetail {

/// How rows of numbers travel. unchanged: in their own dtype. mxfp8: E4M3 codes with one E8M0 scale
/// for 32 consecutive elements of a row, rounded up (`mx::quantize`), both in one message: 1 + 1/32
/// bytes an element, 0.516 of bfloat16's.
enum class Payload { kUnchanged, kFloat32, kBFloat16, kMXFP8 };

/// "unchanged", "fp32", "bf16", "mxfp8".
std::string_view name(Payload payload);
/// The inverse. Throws UserError for another name, listing the valid ones.
Payload parse_payload(std::string_view text);

/// Bytes of one row of `width` elements of `dtype` on the wire.
int64_t row_bytes(Payload payload, int64_t width, at::ScalarType dtype);

/// What is sent for x (rows, ...), any floating point dtype: (rows, ...) of the payload's dtype;
/// mxfp8, x (rows, C): (rows, C + ceil(C / 32)) uint8, the codes of a row and its scales.
/// Contiguous. Throws UserError for mxfp8 of anything but a matrix of float32, bfloat16 or float16.
at::Tensor encode(const at::Tensor& x, Payload payload);

/// The rows of `message` as a tensor of `dtype` and `width` columns (of mxfp8; others have theirs).
at::Tensor decode(const at::Tensor& message, Payload payload, int64_t width, at::ScalarType dtype);

}  // namespace dovetail
