#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail {

/// Dtype of gradient sums: float64 for float64 parameters, else float32.
at::ScalarType sum_dtype(at::ScalarType dtype);

/// Parameters whose gradients are reduced together, as one flat vector in the order of
/// `parameters`.
///
/// The vector is cut into one share a rank, contiguous and of equal size: rank r has elements [r *
/// share(), (r + 1) * share()). Cuts may fall inside a parameter. Elements past the last parameter
/// are padding: zero, fewer than ranks.
struct Bucket {
  /// A range of one parameter's elements, in row-major order.
  struct Piece {
    size_t parameter = 0;
    int64_t begin = 0, size = 0;
  };

  std::shared_ptr<Group> group;
  std::vector<size_t> parameters;  ///< places in the list of all parameters
  std::vector<int64_t> sizes;      ///< elements of each

  int64_t elements() const;
  int64_t share() const;
  /// Pieces of a rank's share, back to back from its first element.
  std::vector<Piece> pieces(int rank) const;
};

/// Buckets of at most `bucket_bytes` of sums, or of one larger parameter. The last parameter comes
/// first, as in backward. A bucket has one group, one device and one dtype of sums. Parameters
/// whose group is one rank have none.
std::vector<Bucket> make_buckets(const std::vector<at::Tensor>& parameters,
                                 const std::vector<std::shared_ptr<Group>>& groups,
                                 int64_t bucket_bytes);

}  // namespace dovetail
