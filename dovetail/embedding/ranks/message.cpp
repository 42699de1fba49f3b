#include "dovetail/embedding/ranks/message.h"

#include <ATen/ATen.h>

#include <bit>
#include <numeric>

namespace dovetail::embedding {

int64_t elements_of_row(comm::Payload payload, int64_t columns) {
  return quantizes(payload) ? row_bytes(payload, columns, at::kFloat) : columns;
}

at::Tensor encode_rows(const at::Tensor& rows, comm::Payload payload) {
  return encode(rows, payload).view(-1);
}

at::Tensor decode_rows(const at::Tensor& elements, comm::Payload payload, int64_t rows,
                       int64_t columns) {
  return decode(elements.view({rows, elements_of_row(payload, columns)}), payload, columns,
                at::kFloat);
}

std::vector<at::Tensor> decode_groups(const at::Tensor& elements, comm::Payload payload,
                                      const std::vector<RowGroup>& groups) {
  std::vector<at::Tensor> found;
  found.reserve(groups.size());
  int64_t next = 0;
  for (auto begin = groups.begin(), end = begin; begin != groups.end(); begin = end) {
    const int64_t columns = begin->columns;
    std::vector<int64_t> rows;
    for (; end != groups.end() && end->columns == columns; ++end) rows.push_back(end->rows);
    const int64_t count = std::accumulate(rows.begin(), rows.end(), int64_t{0}),
                  size = count * elements_of_row(payload, columns);
    const at::Tensor decoded = decode_rows(elements.narrow(0, next, size), payload, count, columns);
    next += size;
    for (const at::Tensor& group : decoded.split_with_sizes(rows)) found.push_back(group);
  }
  return found;
}

at::Tensor no_elements(comm::Payload payload, at::Device device) {
  return encode_rows(at::empty({0, 1}, device), payload);
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
