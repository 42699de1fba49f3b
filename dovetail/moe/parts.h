#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "dovetail/moe/parallel_experts.h"

/// Parts of experts. A part is the slice of one expert on one rank (moe/placement.h). Function
/// parallel_feed_forward sends rows to parts.
namespace dovetail::moe {

/// Numbering of parts. Each expert has `cut` parts, one on each rank of its holder (a group of
/// `cut` ranks, moe/placement.h). Numbers ascend by rank, and on one rank by expert. Rows are sent
/// in this order.
struct Parts {
  const Placement& placement;
  /// Returns the number of parts.
  int64_t count() const { return placement.experts * placement.cut; }
  /// Returns the number of the first part on `rank`.
  int64_t first(int rank) const {
    const int holder = placement.holder(rank);
    return placement.first(holder) * placement.cut +
           placement.slice(rank) * placement.count(holder);
  }
  /// Returns the number of the part with slice `slice` of `expert`, which `holder` holds.
  int64_t of(int64_t expert, int holder, int slice) const {
    return first(holder * placement.cut + slice) + expert - placement.first(holder);
  }
};

/// Choices of T tokens: the k experts of each token.
struct Choices {
  at::Tensor expert, slot;  ///< (T, k) int32, as in a Routing
};

/// Replaces each choice by `layout.shards` choices, one for each part that processes its row.
/// Returns (T, k shards), in which `expert` holds part numbers. Choices of shadowed experts and
/// dropped choices have slot -1.
Choices choices_of_parts(const Choices& choices, const Placement& placement,
                         const ExpertLayout& layout);

/// Keeps only the choices of the experts in `shadowed`: all other choices get slot -1. In the
/// result, `expert` holds indices into `shadowed`.
Choices choices_of_shadowed(const Choices& choices, const Placement& placement,
                            const std::vector<int64_t>& shadowed);

/// Rows that this rank sends. A token goes once to each rank that has a part of its experts,
/// whatever the number of these parts.
struct SentRows {
  /// Rows sorted by receiving rank, which takes the place of the expert. `choice` is t n + r for
  /// token t and rank r of n.
  DispatchedRows rows;
  /// (R) int32, for each row of the dispatch by parts. It is the index of its token's row among the
  /// rows to the same rank.
  at::Tensor row_of_part;
};

/// Makes the rows to send from a dispatch by parts, of `tokens` tokens. Rows of a rank are in the
/// order in which its parts first name their tokens.
SentRows sent_rows(const DispatchedRows& by_part, const Placement& placement, int64_t tokens);

/// Choices of the rows that this rank receives, for its own experts.
struct ArrivedChoices {
  /// Choices by expert. `token` is the index of a received row; `choice` is token * width + j for
  /// the j-th choice of the row.
  DispatchedRows by_expert;
  at::Tensor choice_of_arrival;  ///< (R) int64: `choice` of the choices, in the order of arrival
};

/// Groups the arrived choices by expert. They arrive sorted by sender, and by expert within one
/// sender. Numbers of choices: counts[sender][expert]. Numbers of rows: rows[sender]. `row_of_part`
/// is SentRows::row_of_part of all senders, `width` the maximum number of choices of a row.
ArrivedChoices arrived_choices(const std::vector<std::vector<int64_t>>& counts,
                               const std::vector<int64_t>& rows, const at::Tensor& row_of_part,
                               int64_t width);

/// Groups the rows that this rank receives by expert. They arrive sorted by sender, and by expert
/// within one sender. counts[sender][expert]: number of rows. In the result, `token` and `choice`
/// are the index at which a row arrives. `experts`: number of experts of this rank.
DispatchedRows arriving(const std::vector<std::vector<int64_t>>& counts, int64_t experts);

}  // namespace dovetail::moe
