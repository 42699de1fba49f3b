#pragma once

#include <cstdint>
#include <vector>

#include "dovetail/plan/model/check.h"

namespace dovetail::plan {

/// Addresses of a plan's tensors and workspaces in the arena. A tensor that is resident at the
/// start of the step has one address, to which it always returns. Any other tensor has one address
/// per time that it is computed or fetched. This includes tensors that start on the host.
struct Layout {
  int64_t bytes = 0;          ///< size of the arena
  std::vector<int64_t> home;  ///< per tensor: its offset if it is resident at the start, else -1
  /// Per action: offset of the tensor that it fetches, packs or unpacks. For a compute, this is the
  /// offset of its workspace. -1 if the action needs no memory.
  std::vector<int64_t> result;
  /// Per compute action: offset of each output of its node.
  std::vector<std::vector<int64_t>> outputs;
  /// Per action: offloads that must end before the action overwrites their memory.
  std::vector<std::vector<int>> waits;
};
/// Places all tensors and workspaces of a plan. The layout fits into the budget of `graph` if the
/// search finds a placement that does. Addresses are aligned (plan/model/packing.h) if all tensor
/// sizes come from `planned_bytes`, as in each recorded step. In other graphs, addresses are
/// unaligned.
Layout lay_out(const Graph& graph, const Plan& plan, const Timeline& timeline);

}  // namespace dovetail::plan
