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
#include "dovetail/mx/linear_group.h"

namespace dovetail::moe {

/// Layout of a layer for one step: the rows and the expert weights that are sent between ranks. A
/// row is a copy of a token for one of its experts. The layout may change from step to step, since
/// parameters stay on the ranks of their Placement (moe/placement.h).
struct ExpertLayout {
  /// Tutel's r (arXiv 2206.03382, section 3.1): number of ranks that process a row together. It is
  /// 0 or a divisor of Placement::cut, the number of ranks over which each expert is cut.
  ///
  /// - r = cut: each row goes to all `cut` ranks of its expert. Nothing is gathered.
  /// - 0 < r < cut: each rank gathers cut / r slices of its experts, so that r ranks together hold
  ///   each expert whole. There are cut / r such groups of r ranks; they share the expert's rows.
  /// - r = 0: no row is sent. Every rank gathers all experts.
  int shards = 1;
  /// Number of chunks into which the tokens are split. The exchange of one chunk overlaps with
  /// expert computation on another.
  int overlap = 1;
  bool hierarchical = false;  ///< algorithm of the all-to-alls (comm/exchange.h)
  /// Shadowed experts, ascending: every rank gathers their weights, and their rows are not sent
  /// (FasterMoE).
  std::vector<int64_t> shadowed = {};
};

/// Ranks that the experts of each layer are spread over.
struct ExpertRanks {
  Placement placement;
  std::shared_ptr<comm::Group> group;
  std::optional<comm::NodeGroups> nodes;  ///< required by hierarchical layouts
  comm::Payloads dispatch, combine;  ///< number formats of rows on the way to the experts and back
};

/// Experts of this rank.
struct LocalExperts {
  ExpertWeights weights;  ///< this rank's slices of the experts
  /// Function that runs an expert on rows, as in `apply_experts`. If set, it is used instead of
  /// `weights`.
  std::function<at::Tensor(int64_t, const at::Tensor&)> modules = nullptr;
  /// Function that runs all experts as one operation. Group e of the rows belongs to expert e. If
  /// set, it is used instead of `weights`.
  std::function<at::Tensor(const at::Tensor&, const mx::RowGroups&)> grouped = nullptr;
};

/// Computes the same as feed_forward (experts.h) with experts of any form.
at::Tensor run_experts(const at::Tensor& x, const at::Tensor& weight, const Dispatch& to,
                       const LocalExperts& experts);

/// Computes the same as feed_forward with a padded Dispatch, on one rank that has all experts.
/// Copies rows into (E, capacity, C), with zeros as padding. All of these rows run through the
/// experts. Their results are summed by token.
at::Tensor padded_feed_forward(const at::Tensor& x, const at::Tensor& weight, const Dispatch& to,
                               const LocalExperts& experts);

/// Computes y (T, C) as feed_forward(x, weight, ...) does, with the experts of all ranks. All ranks
/// call it together with the same layout; T may differ between ranks and be 0. x: (T, C). weight:
/// (T, k). expert and slot: (T, k) int32, as in a Routing, with global expert ids.
///
/// Received rows are not sorted: the experts' products gather them. All chunks share one exchange
/// of sizes, at which the host waits once. A hierarchical layout has two more such exchanges for
/// each chunk. A layout with shards = 0 has no exchange of sizes. A token's results are added in
/// the order of its experts, as on one rank. Only the order of an expert's slices may differ. The
/// same ranks and layout give bitwise equal results.
///
/// If `capacity` is set, the rows that are sent to an expert are padded with zeros to this number.
/// It must exceed every slot and be the same on all ranks. All sizes are then known, and ranks
/// exchange no sizes. With `capacity`, a chunk is a range of slots, and every chunk has all tokens
/// (Tutel, section 3.3). Hierarchical layouts then require equally many experts on each rank
/// (UserError).
at::Tensor parallel_feed_forward(const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& expert, const at::Tensor& slot,
                                 const LocalExperts& local, const ExpertRanks& ranks,
                                 const ExpertLayout& layout,
                                 std::optional<int64_t> capacity = std::nullopt);

/// Parsed name of an expert's parameter or Linear, with any prefix. The examples are for
/// "optimizer.m.blocks.3.moe.experts.17.up.weight".
struct ExpertName {
  /// Text before the expert's index; example: "optimizer.m.blocks.3.moe.experts.".
  std::string before;
  int64_t expert = 0;  ///< global index of the expert; example: 17
  std::string rest;    ///< name of the parameter within the expert; example: "up.weight"
};
/// Parses a name. Returns nullopt if it does not belong to an expert.
std::optional<ExpertName> parse_expert_name(std::string_view name);

/// Slice of an expert's parameter ("up.weight" and so on) that a rank holds. It is a range of
/// hidden elements of the expert. Hidden elements are the columns of down and the rows of up. If up
/// has a gate, the slice has its rows of the gate, followed by its rows of up.
struct ExpertSlice {
  std::vector<int64_t> whole;  ///< sizes of the whole parameter
  /// View of the whole parameter: (outer, hidden, rest). The slice is the range [first, first +
  /// count) of the second dimension, which is the expert's hidden elements.
  int64_t outer = 1, hidden = 0, first = 0, count = 0;

  /// Returns a view of the slice in the whole parameter `whole_one`. Its elements have the same
  /// order as on the rank.
  at::Tensor of(const at::Tensor& whole_one) const {
    return whole_one.view({outer, hidden, -1}).narrow(1, first, count);
  }
};
/// Returns the slice of `parameter` (ExpertName::rest, such as "up.weight") that rank `rank` holds.
/// own_sizes: sizes of the slice on that rank.
ExpertSlice expert_slice(std::string_view parameter, at::IntArrayRef own_sizes,
                         const std::string& activation, const Placement& placement, int rank);

}  // namespace dovetail::moe
