#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "dovetail/plan/model/check.h"

namespace dovetail::plan {

/// Addresses of a plan's tensors and workspaces, as byte offsets in one memory region (the arena).
/// A tensor that is resident at the start of the step has one address, to which it always returns.
/// Any other tensor gets an address each time that it is computed, fetched or unpacked. This
/// includes tensors that start on the host.
struct Layout {
  int64_t bytes = 0;  ///< size of the arena
  /// Per tensor: its offset if it is resident at the start of the step, else -1.
  std::vector<int64_t> home;
  /// Per action: offset of the memory that it fills; -1 if it fills none.
  /// - prefetch, decompress: the tensor
  /// - compress: the packed form
  /// - compute: the workspace
  std::vector<int64_t> result;
  /// Per compute action: offset of each output of its node.
  std::vector<std::vector<int64_t>> outputs;
  /// Per action: offloads (positions in the plan) that must end before the action overwrites the
  /// memory from which they copy.
  std::vector<std::vector<int>> waits;
};
/// Places all tensors and workspaces of a plan. `timeline` is the result of `check`. The search for
/// addresses ends when they fit into the budget of `graph`. The layout exceeds the budget if no
/// addresses are found that fit. It also ends if the layout cannot have fewer than `too_many`
/// bytes.
///
/// Addresses are aligned (plan/model/packing.h) if all tensor sizes come from `planned_bytes`, as
/// in the graph of a recorded step. In other graphs, addresses are unaligned.
Layout lay_out(const Graph& graph, const Plan& plan, const Timeline& timeline,
               int64_t too_many = std::numeric_limits<int64_t>::max());

}  // namespace dovetail::plan
