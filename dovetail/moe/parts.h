#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "dovetail/moe/parallel_experts.h"

/// Parts of experts that are spread over ranks: parallel_feed_forward sends each row to a part.
namespace dovetail::moe {

/// Numbering of parts. Each expert has `cut` parts, one on each rank of its holder. Numbers ascend
/// by rank, and on one rank by expert. Rows are sent in this order.
struct Parts {
  const Placement& placement;
  int64_t count() const { return placement.experts * placement.cut; }
  int64_t first(int rank) const {
    const int holder = placement.holder(rank);
    return placement.first(holder) * placement.cut +
           placement.slice(rank) * placement.count(holder);
  }
  int64_t of(int64_t expert, int holder, int slice) const {
    return first(holder * placement.cut + slice) + expert - placement.first(holder);
  }
};

struct Choices {
  at::Tensor expert, slot;  ///< (T, k) int32, as in a Routing
};

/// Expands each choice into `shards` choices, one for each part that processes it. Returns part
/// numbers instead of experts, (T, k shards). Choices of shadowed experts and dropped choices have
/// slot -1.
Choices choices_of_parts(const Choices& choices, const Placement& placement,
                         const ExpertLayout& layout);

/// Keeps only the choices of shadowed experts. Returns indices into `shadowed` instead of experts;
/// other choices have slot -1.
Choices choices_of_shadowed(const Choices& choices, const Placement& placement,
                            const std::vector<int64_t>& shadowed);

/// Groups received rows by expert. They arrive sorted by sender, and by expert within one sender.
/// counts[sender][expert]: number of rows.
DispatchedRows arriving(const std::vector<std::vector<int64_t>>& counts, int64_t experts);

}  // namespace dovetail::moe
