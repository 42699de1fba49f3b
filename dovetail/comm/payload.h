#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace dovetail::comm {

/// Number format in which ranks send rows to each other.
///
/// - kUnchanged: the tensor's own dtype
/// - kFloat32, kBFloat16: this dtype
/// - kMXFP8: E4M3 codes with one E8M0 scale per 32 consecutive elements of a row (`mx::quantize`).
///   Scales are rounded up. Codes and scales are one message: 1 + 1/32 bytes per element, 0.516
///   times the bytes of bfloat16.
/// - kFP8: E4M3 codes with one float32 scale per 128 consecutive elements of a row
///   (`mx::quantize_float8`), as DeepSeek-V3 sends tokens to experts (arXiv 2412.19437, section
///   3.3.3). Codes and scales are one message, of as many bytes as in MXFP8.
enum class Payload { kUnchanged, kFloat32, kBFloat16, kMXFP8, kFP8 };

/// Returns "unchanged", "fp32", "bf16", "mxfp8" or "fp8".
std::string_view name(Payload payload);
/// Inverse of `name`. Throws UserError for another name and lists the valid ones.
Payload parse_payload(std::string_view text);

/// Returns true if messages are codes with scales.
bool quantizes(Payload payload);

/// Returns the bytes that are sent for one row of `width` elements of `dtype`.
int64_t row_bytes(Payload payload, int64_t width, at::ScalarType dtype);

/// Converts rows to the message that is sent for them. x has shape (rows, ...), any floating point
/// dtype. Returns a contiguous tensor of the same shape in the payload's dtype. For mxfp8 and fp8,
/// x (rows, C) gives uint8: the codes of a row, then its scales. The shape is (rows, C + ceil(C /
/// 32)) for mxfp8 and (rows, C + 4 ceil(C / 128)) for fp8. Throws UserError if mxfp8 or fp8 gets
/// anything but a matrix of float32, bfloat16 or float16.
at::Tensor encode(const at::Tensor& x, Payload payload);

/// Converts a message of `encode` back to rows in `dtype`. `width` is the number of columns C for
/// mxfp8 and fp8. Other payloads do not read it and keep the message's shape.
at::Tensor decode(const at::Tensor& message, Payload payload, int64_t width, at::ScalarType dtype);

}  // namespace dovetail::comm
