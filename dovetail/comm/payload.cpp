#include "dovetail/comm/payload.h"

#include <ATen/ops/cat.h>

#include <array>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/enum_names.h"
#include "dovetail/mx/quantize.h"

namespace dovetail::comm {
namespace {

constexpr std::array<std::string_view, 4> kPayloadNames = {"unchanged", "fp32", "bf16", "mxfp8"};

at::ScalarType wire_dtype(Payload payload, at::ScalarType dtype) {
  return payload == Payload::kFloat32    ? at::kFloat
         : payload == Payload::kBFloat16 ? at::kBFloat16
                                         : dtype;
}

at::Tensor encode_mxfp8(const at::Tensor& x) {
  const bool quantizable = x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 ||
                           x.scalar_type() == at::kHalf;
  user_check(x.dim() == 2 && quantizable,
             "all_to_all: an mxfp8 payload is for a matrix of float32, bfloat16 or float16, not {} "
             "dimensions of {}",
             x.dim(), c10::toString(x.scalar_type()));
  const auto row = mx::quantize(x).row;
  return at::cat({row.codes(), row.scales()}, 1);
}

at::Tensor decode_mxfp8(const at::Tensor& message, int64_t width, at::ScalarType dtype) {
  const mx::MXTensor rows(message.narrow(1, 0, width).contiguous(),
                          message.narrow(1, width, message.size(1) - width).contiguous(),
                          mx::Format::kE4M3, mx::Orientation::kRow);
  return dtype == at::kBFloat16 ? mx::dequantize(rows, dtype) : mx::dequantize(rows).to(dtype);
}

}  // namespace

std::string_view name(Payload payload) { return kPayloadNames[static_cast<size_t>(payload)]; }
Payload parse_payload(std::string_view text) {
  return parse_enum<Payload>("comm", "payload", text, kPayloadNames);
}

int64_t row_bytes(Payload payload, int64_t width, at::ScalarType dtype) {
  if (payload == Payload::kMXFP8) return width + (width + mx::kBlock - 1) / mx::kBlock;
  return width * static_cast<int64_t>(c10::elementSize(wire_dtype(payload, dtype)));
}

at::Tensor encode(const at::Tensor& x, Payload payload) {
  return payload == Payload::kMXFP8 ? encode_mxfp8(x)
                                    : x.to(wire_dtype(payload, x.scalar_type())).contiguous();
}

at::Tensor decode(const at::Tensor& message, Payload payload, int64_t width, at::ScalarType dtype) {
  return payload == Payload::kMXFP8 ? decode_mxfp8(message, width, dtype) : message.to(dtype);
}

}  // namespace dovetail::comm
