#include "dovetail/embedding/ranks/message.h"

#include <ATen/ATen.h>

#include <bit>

namespace dovetail::embedding {

int64_t elements_of_row(comm::Payload payload, int64_t columns) {
  return payload == comm::Payload::kMXFP8 ? row_bytes(payload, columns, at::kFloat) : columns;
}

at::Tensor encode_rows(const at::Tensor& rows, comm::Payload payload) {
  return encode(rows, payload).view(-1);
}

at::Tensor decode_rows(const at::Tensor& elements, comm::Payload payload, int64_t rows,
                       int64_t columns) {
  return decode(elements.view({rows, elements_of_row(payload, columns)}), payload, columns,
                at::kFloat);
}

void write_id(int64_t id, int64_t words, int32_t* to) {
  to[0] = std::bit_cast<int32_t>(static_cast<uint32_t>(id));
  if (words > 1)
    to[1] = std::bit_cast<int32_t>(static_cast<uint32_t>(static_cast<uint64_t>(id) >> 32));
}

int64_t read_id(const int32_t* from, int64_t words) {
  const auto low = static_cast<uint64_t>(std::bit_cast<uint32_t>(from[0]));
  if (words == 1) return static_cast<int64_t>(low);
  return static_cast<int64_t>(low | static_cast<uint64_t>(std::bit_cast<uint32_t>(from[1])) << 32);
}

}  // namespace dovetail::embedding
