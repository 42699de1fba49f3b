#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "dovetail/moe/parallel_experts.h"

/// What parallel_feed_forward sends where: experts that are spread over ranks, as the parts of
/// theirs that ranks hold.
namespace dovetail::moe {

/// The parts that experts fall into, one for each rank of their holder, numbered in the order of
/// the ranks and within one of its experts: as rows are sent.
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
  at::Tensor expert, slot;  ///< (T, k) int32, as of a Routing
};

/// Each choice as one of each of the `shards` parts it goes to; those of shadowed experts and
/// dropped ones have slot -1.
Choices choices_of_parts(const Choices& choices, const Placement& placement, const Plan& plan);

/// The choices of shadowed experts alone, as indices into `shadowed`.
Choices choices_of_shadowed(const Choices& choices, const Placement& placement,
                            const std::vector<int64_t>& shadowed);

/// The rows that arrive, sorted by sender and within one by expert, as those of each expert. counts
/// (senders, experts).
DispatchedRows arriving(const std::vector<std::vector<int64_t>>& counts, int64_t experts);

}  // namespace dovetail::moe
