#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail::comm {

/// Returns the dtype in which the gradients of parameters of `dtype` are summed: float64 for
/// float64, else float32.
at::ScalarType sum_dtype(at::ScalarType dtype);

/// Parameters whose gradients are summed over ranks together. The gradients form one flat vector,
/// in the order of `parameters`.
///
/// The vector is cut into one contiguous share per rank, all of equal size. Rank r has elements [r
/// * share(), (r + 1) * share()). A cut may fall inside a parameter. The last share may end with
/// padding: fewer elements than there are ranks.
struct Bucket {
  /// Elements [begin, begin + size) of one parameter, in row-major order.
  struct Piece {
    size_t parameter = 0;  ///< index into the list of all parameters
    int64_t begin = 0, size = 0;
  };

  std::shared_ptr<Group> group;    ///< ranks over which the gradients are summed
  std::vector<size_t> parameters;  ///< indices into the list of all parameters
  std::vector<int64_t> sizes;      ///< number of elements of each parameter

  int64_t elements() const;  ///< number of elements of the vector, without padding
  int64_t share() const;     ///< number of elements of one share: elements() / ranks, rounded up
  /// Returns the pieces of parameters that make up the share of `rank`, in order, without gaps.
  std::vector<Piece> pieces(int rank) const;
};

/// Puts `parameters` into buckets with at most `bucket_bytes` of gradient sums. A parameter larger
/// than that gets a bucket of its own. Parameters are taken from the last to the first, because
/// backward finishes the last one first. The parameters of a bucket have the same group, device and
/// `sum_dtype`. `groups` has one entry per parameter: the ranks over which its gradient is summed.
/// A parameter whose group has one rank gets no bucket.
std::vector<Bucket> make_buckets(const std::vector<at::Tensor>& parameters,
                                 const std::vector<std::shared_ptr<Group>>& groups,
                                 int64_t bucket_bytes);

}  // namespace dovetail::comm
