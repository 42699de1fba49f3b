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

/// How rows and experts meet in a step. It may change from step to step: no parameter moves its
/// home.
struct Plan {
  /// Tutel's r (arXiv 2206.03382, section 3.1), from 0 to `cut`, which it divides: each expert is
  /// put together from cut / r slices, and a row goes to the r ranks that then hold all of it; the
  /// cut / r groups of such ranks share the expert's rows. cut: experts stay where they are. 0: no
  /// row moves, every rank gathers all experts.
  int shards = 1;
  int overlap = 1;  ///< chunks of tokens whose exchange overlaps with the experts of another
  bool hierarchical = false;
  std::vector<int64_t> shadowed =
      {};  ///< experts, ascending, that every rank gathers; their rows stay (FasterMoE)
};

/// The ranks that the experts of every layer are spread over.
struct ExpertRanks {
  Placement placement;
  std::shared_ptr<Group> group;
  std::optional<NodeGroups> nodes;  ///< for hierarchical plans
  Payloads dispatch, combine;       ///< how rows travel to the experts and back
};

/// This rank's experts, slices of which `weights` holds. `modules`, if any, run in their place: as
/// `apply_experts`.
struct LocalExperts {
  ExpertWeights weights;
  std::function<at::Tensor(int64_t, const at::Tensor&)> modules;
};

/// feed_forward with a Dispatch that is padded, on one rank with all experts: its rows are encoded
/// into (E, capacity, C), go through the experts, zeros among them, and are decoded.
at::Tensor padded_feed_forward(const at::Tensor& x, const at::Tensor& weight, const Dispatch& to,
                               const LocalExperts& experts);

/// y (T, C) as feed_forward(x, weight, ...) with all experts, by the experts of all ranks, which
/// call it together with the same plan; T may differ and be 0. x (T, C); weight (T, k); expert and
/// slot (T, k) int32 with global ids.
///
/// Rows that arrive are not sorted: the experts' products read them where they lie. One exchange of
/// sizes and host synchronisation for all chunks (hierarchical: two more of each chunk); with r = 0
/// none. Sums as of one rank but for the order of an expert's slices: a token's experts in their
/// order. Same bits for the same ranks and plan.
///
/// With `capacity`, above every slot and the same on all ranks, rows that move are padded to it:
/// every rank knows what comes, so no sizes are exchanged. Chunks are ranges of slots then, each
/// with all tokens (Tutel, section 3.3). Hierarchical plans need as many experts on every rank
/// (UserError).
at::Tensor parallel_feed_forward(const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& expert, const at::Tensor& slot,
                                 const LocalExperts& local, const ExpertRanks& ranks,
                                 const Plan& plan, std::optional<int64_t> capacity = std::nullopt);

/// A name under which a model's experts keep something, of a parameter or a Linear, behind any
/// prefix: "optimizer.m.blocks.3.moe.experts.", 17, "up.weight".
struct ExpertName {
  std::string before;
  int64_t expert = 0;
  std::string rest;
};
/// Nothing where the name is not of an expert.
std::optional<ExpertName> parse_expert_name(std::string_view name);

/// What a rank holds of a parameter of an expert, "up.weight" and so on: a slice along the hidden
/// elements, which are the rows of up (of its gate's, then of its own) and the columns of down.
struct ExpertSlice {
  std::vector<int64_t> whole;  ///< sizes of the whole one
  int64_t outer = 1, hidden = 0, first = 0, count = 0;

  /// A view of the slice in a whole one, with the same elements in the same order as the rank's.
  at::Tensor of(const at::Tensor& whole_one) const {
    return whole_one.view({outer, hidden, -1}).narrow(1, first, count);
  }
};
ExpertSlice expert_slice(std::string_view parameter, at::IntArrayRef own_sizes,
                         const std::string& activation, const Placement& placement, int rank);

}  // namespace dovetail::moe
