#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail::comm {

/// Dtype in which gradients are summed: float64 for float64 parameters, else float32.
at::ScalarType sum_dtype(at::ScalarType dtype);

/// Parameters whose gradients are reduced together, as one flat vector in the order of
/// `parameters`.
///
/// The vector is cut into one contiguous share per rank, all of equal size. Rank r has elements [r
/// * share(), (r + 1) * share()). A cut may fall inside a parameter. Elements after the last
/// parameter are zero padding, fewer than ranks.
struct Bucket {
  /// Elements [begin, begin + size) of one parameter, in row-major order.
  struct Piece {
    size_t parameter = 0;
    int64_t begin = 0, size = 0;
  };

  std::shared_ptr<Group> group;
  std::vector<size_t> parameters;  ///< indices into the list of all parameters
  std::vector<int64_t> sizes;      ///< number of elements of each parameter

  int64_t elements() const;
  int64_t share() const;
  /// Parameter pieces that make up the share of `rank`, in order, without gaps.
  std::vector<Piece> pieces(int rank) const;
};

/// Groups `parameters` into buckets with at most `bucket_bytes` of gradient sums. A parameter
/// larger than that gets a bucket of its own. The last parameter comes first, because backward
/// finishes it first. The parameters of a bucket share one group, one device and one sum dtype.
/// `groups` has one entry per parameter. A parameter whose group has one rank gets no bucket.
std::vector<Bucket> make_buckets(const std::vector<at::Tensor>& parameters,
                                 const std::vector<std::shared_ptr<Group>>& groups,
                                 int64_t bucket_bytes);

}  // namespace dovetail::comm
