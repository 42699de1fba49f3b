#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/comm/all_to_all.h"
#include "dovetail/moe/experts.h"
#include "dovetail/moe/placement.h"
#include "dovetail/moe/routing.h"

namespace dovetail::moe {

/// Layout of a layer for one step: which rows and which expert weights travel between ranks. It may
/// change from step to step, since parameters stay on the ranks of their Placement.
struct ExpertLayout {
  /// Tutel's r (arXiv 2206.03382, section 3.1): number of ranks that process a row together. Range:
  /// 0 to `cut`; must divide `cut`. Each rank gathers cut / r slices of its experts, so that r
  /// ranks together hold each expert whole. There are cut / r such groups of r ranks; they share
  /// the expert's rows. cut: nothing is gathered, experts stay in place. 0: no row is sent, every
  /// rank gathers all experts.
  int shards = 1;
  /// Number of chunks of tokens. The exchange of one chunk overlaps with expert computation on
  /// another.
  int overlap = 1;
  bool hierarchical = false;
  /// Experts, ascending, whose weights every rank gathers. Their rows are not sent (FasterMoE).
  std::vector<int64_t> shadowed = {};
};

/// Ranks that the experts of each layer are spread over.
struct ExpertRanks {
  Placement placement;
  std::shared_ptr<comm::Group> group;
  std::optional<comm::NodeGroups> nodes;  ///< required by hierarchical layouts
  comm::Payloads dispatch, combine;  ///< number formats of rows on the way to the experts and back
};

/// Experts of this rank. `weights` holds this rank's slices. `modules`, if set, replaces them: a
/// function as in `apply_experts`.
struct LocalExperts {
  ExpertWeights weights;
  std::function<at::Tensor(int64_t, const at::Tensor&)> modules;
};

/// Runs feed_forward with a padded Dispatch, on one rank that has all experts. Encodes rows into
/// (E, capacity, C), with zeros as padding. All of these rows run through the experts and are
/// decoded.
at::Tensor padded_feed_forward(const at::Tensor& x, const at::Tensor& weight, const Dispatch& to,
                               const LocalExperts& experts);

/// Computes y (T, C) as feed_forward(x, weight, ...) with the experts of all ranks. All ranks call
/// it together with the same layout; T may differ between ranks and be 0. x: (T, C). weight: (T,
/// k). expert and slot: (T, k) int32 with global expert ids.
///
/// Received rows are not sorted: the experts' products gather them. All chunks share one exchange
/// of sizes and one host synchronisation. A hierarchical layout has two more for each chunk; r = 0
/// has none. A token's experts are summed in their order, as on one rank; only the order of an
/// expert's slices may differ. The same ranks and layout give bitwise equal results.
///
/// With `capacity`, sent rows are padded to it. It must exceed every slot and be the same on all
/// ranks. All sizes are then known, and ranks exchange no sizes. Chunks are then ranges of slots,
/// each with all tokens (Tutel, section 3.3). Hierarchical layouts then require equally many
/// experts on each rank (UserError).
at::Tensor parallel_feed_forward(const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& expert, const at::Tensor& slot,
                                 const LocalExperts& local, const ExpertRanks& ranks,
                                 const ExpertLayout& layout,
                                 std::optional<int64_t> capacity = std::nullopt);

/// Parsed name of an expert's parameter or Linear, with any prefix. For example
/// "optimizer.m.blocks.3.moe.experts.17.up.weight" gives the three members
/// "optimizer.m.blocks.3.moe.experts.", 17 and "up.weight".
struct ExpertName {
  std::string before;
  int64_t expert = 0;
  std::string rest;
};
/// Returns nullopt if the name does not belong to an expert.
std::optional<ExpertName> parse_expert_name(std::string_view name);

/// Slice of an expert's parameter ("up.weight" and so on) that a rank holds. It is a range of
/// hidden elements. These are the columns of down, or rows of up. If up has a gate, the slice has
/// rows of the gate, then of up.
struct ExpertSlice {
  std::vector<int64_t> whole;  ///< sizes of the whole parameter
  int64_t outer = 1, hidden = 0, first = 0, count = 0;

  /// Returns a view of the slice in the whole parameter, with elements in the same order as on the
  /// rank.
  at::Tensor of(const at::Tensor& whole_one) const {
    return whole_one.view({outer, hidden, -1}).narrow(1, first, count);
  }
};
ExpertSlice expert_slice(std::string_view parameter, at::IntArrayRef own_sizes,
                         const std::string& activation, const Placement& placement, int rank);

}  // namespace dovetail::moe
