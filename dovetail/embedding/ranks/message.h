#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "dovetail/comm/payload.h"

namespace dovetail::embedding {

/// Messages from this rank to all ranks, in one tensor `elements` (N). The first counts[0] elements
/// are for rank 0, the next counts[1] for rank 1, and so on.
struct Message {
  at::Tensor elements;
  std::vector<int64_t> counts;
};

/// Returns the elements of a message that send one row of `columns` float32.
int64_t elements_of_row(comm::Payload payload, int64_t columns);
/// Encodes rows (n, columns) float32 as message elements.
at::Tensor encode_rows(const at::Tensor& rows, comm::Payload payload);
/// Inverse of encode_rows.
at::Tensor decode_rows(const at::Tensor& elements, comm::Payload payload, int64_t rows,
                       int64_t columns);
/// Rows of equal width in a message.
struct RowGroup {
  int64_t rows, columns;
};
/// Decodes a message with several groups, one after the other. Returns the rows of each group.
/// Neighbours of equal width are decoded at once.
std::vector<at::Tensor> decode_groups(const at::Tensor& elements, comm::Payload payload,
                                      const std::vector<RowGroup>& groups);
/// Returns a message without elements.
at::Tensor no_elements(comm::Payload payload, at::Device device);

/// Writes an id as `words` int32 words, the lower half first.
void write_id(int64_t id, int64_t words, int32_t* to);
/// Inverse of write_id.
int64_t read_id(const int32_t* from, int64_t words);

}  // namespace dovetail::embedding
