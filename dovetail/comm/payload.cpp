#include "dovetail/comm/payload.h"

#include <ATen/ops/cat.h>

#include <array>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/enum_names.h"
#include "dovetail/mx/float8.h"
#include "dovetail/mx/quantize.h"

namespace dovetail::comm {
namespace {

constexpr std::array<std::string_view, 5> kPayloadNames = {"unchanged", "fp32", "bf16", "mxfp8",
                                                           "fp8"};

at::ScalarType wire_dtype(Payload payload, at::ScalarType dtype) {
  return payload == Payload::kFloat32    ? at::kFloat
         : payload == Payload::kBFloat16 ? at::kBFloat16
                                         : dtype;
}

/// Returns the bytes of a row's scales.
int64_t scale_bytes(Payload payload, int64_t width) {
  const auto blocks = [&](int64_t block) { return (width + block - 1) / block; };
  return payload == Payload::kMXFP8
             ? blocks(mx::kBlock)
             : blocks(mx::kFloat8Block) * static_cast<int64_t>(sizeof(float));
}

at::Tensor encode_codes(const at::Tensor& x, Payload payload) {
  const bool quantizable = x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 ||
                           x.scalar_type() == at::kHalf;
  user_check(x.dim() == 2 && quantizable,
             "all_to_all: an {} payload is for a matrix of float32, bfloat16 or float16, not {} "
             "dimensions of {}",
             name(payload), x.dim(), c10::toString(x.scalar_type()));
  if (payload == Payload::kMXFP8) {
    const auto row = mx::quantize(x).row;
    return at::cat({row.codes(), row.scales()}, 1);
  }
  const mx::Float8Tensor row =
      mx::quantize_float8(x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x,
                          {.blocks = mx::Float8Blocks::kRow})
          .tensor;
  return at::cat({row.codes, row.scales.view(at::kByte)}, 1);
}

at::Tensor decode_codes(const at::Tensor& message, Payload payload, int64_t width,
                        at::ScalarType dtype) {
  const at::Tensor codes = message.narrow(1, 0, width).contiguous(),
                   scales = message.narrow(1, width, scale_bytes(payload, width)).contiguous();
  const at::ScalarType decoded = dtype == at::kBFloat16 ? dtype : at::kFloat;
  if (payload == Payload::kMXFP8)
    return mx::dequantize({codes, scales, mx::Format::kE4M3, mx::Orientation::kRow}, decoded)
        .to(dtype);
  return mx::dequantize(mx::Float8Tensor{.codes = codes,
                                         .scales = scales.view(at::kFloat),
                                         .blocks = mx::Float8Blocks::kRow},
                        decoded)
      .to(dtype);
}

}  // namespace

std::string_view name(Payload payload) { return kPayloadNames[static_cast<size_t>(payload)]; }
Payload parse_payload(std::string_view text) {
  return parse_enum<Payload>("comm", "payload", text, kPayloadNames);
}

bool quantizes(Payload payload) { return payload == Payload::kMXFP8 || payload == Payload::kFP8; }

int64_t row_bytes(Payload payload, int64_t width, at::ScalarType dtype) {
  if (quantizes(payload)) return width + scale_bytes(payload, width);
  return width * static_cast<int64_t>(c10::elementSize(wire_dtype(payload, dtype)));
}

at::Tensor encode(const at::Tensor& x, Payload payload) {
  return quantizes(payload) ? encode_codes(x, payload)
                            : x.to(wire_dtype(payload, x.scalar_type())).contiguous();
}

at::Tensor decode(const at::Tensor& message, Payload payload, int64_t width, at::ScalarType dtype) {
  return quantizes(payload) ? decode_codes(message, payload, width, dtype) : message.to(dtype);
}

}  // namespace dovetail::comm
