#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace dovetail::comm {

/// Number format of rows on the wire. unchanged: the tensor's own dtype. mxfp8: E4M3 codes with one
/// E8M0 scale per 32 consecutive elements of a row, rounded up (`mx::quantize`). Codes and scales
/// are one message: 1 + 1/32 bytes per element, 0.516 times the bytes of bfloat16.
enum class Payload { kUnchanged, kFloat32, kBFloat16, kMXFP8 };

/// Returns "unchanged", "fp32", "bf16" or "mxfp8".
std::string_view name(Payload payload);
/// Inverse of `name`. Throws UserError for another name and lists the valid ones.
Payload parse_payload(std::string_view text);

/// Bytes of one row of `width` elements of `dtype` on the wire.
int64_t row_bytes(Payload payload, int64_t width, at::ScalarType dtype);

/// Returns the message for x (rows, ...), any floating point dtype: a contiguous tensor (rows, ...)
/// of the payload's dtype. For mxfp8, x (rows, C) gives (rows, C + ceil(C / 32)) uint8: the codes
/// of a row, then its scales. Throws UserError if mxfp8 gets anything but a matrix of float32,
/// bfloat16 or float16.
at::Tensor encode(const at::Tensor& x, Payload payload);

/// Returns the rows of `message` in `dtype`. `width` is the number of columns C for mxfp8; other
/// payloads keep the message's shape.
at::Tensor decode(const at::Tensor& message, Payload payload, int64_t width, at::ScalarType dtype);

}  // namespace dovetail::comm
