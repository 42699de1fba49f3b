#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail::comm {

/// Tensor that lies in pieces on the ranks of a group, in rank order, and the rank that gets it
/// whole.
struct Pieces {
  std::vector<int64_t> sizes;  ///< number of elements on each rank
  int owner = -1;              ///< rank that gets all pieces; -1: none
  at::Tensor mine = {};  ///< this rank's piece, sizes[rank] elements; undefined if it has none
};

/// Gathers each tensor at its owner, all in one all-to-all. All ranks of the group call it together
/// with the same `sizes` and owners. All pieces have the dtype and the device of `options`. Returns
/// at the owner of tensor i its pieces in rank order, (sum of sizes); undefined elsewhere. If the
/// owner holds the only piece, the result shares its memory. A rank needs memory for the pieces
/// that it sends and twice for those that it receives.
std::vector<at::Tensor> gather_pieces(Group& group, const std::vector<Pieces>& tensors,
                                      const at::TensorOptions& options);

}  // namespace dovetail::comm
