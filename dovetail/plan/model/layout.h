#pragma once

#include <cstdint>
#include <vector>

#include "dovetail/plan/model/check.h"

namespace dovetail::plan {

/// Where everything of a plan lies in the arena. A tensor that is there from the start has one
/// place, to which it always returns; any other, also one that starts on the host, has one for each
/// time it is made or fetched.
struct Layout {
  int64_t bytes = 0;            ///< of the arena
  std::vector<int64_t> home;    ///< of each tensor that is resident at the start, else -1
  std::vector<int64_t> result;  ///< of each action: where what it fetches, packs or unpacks goes;
                                ///< of a compute: its workspace
  std::vector<std::vector<int64_t>>
      outputs;  ///< of each compute: where each of its node's outputs goes
  std::vector<std::vector<int>>
      waits;  ///< of each action: copies to the host that must have left its places
};
/// Within the budget of `graph` if places are found that are. Addresses are aligned
/// (plan/model/packing.h) where all tensors have sizes of `planned_bytes`, as in each recorded
/// step; another graph's tensors lie anywhere.
Layout lay_out(const Graph& graph, const Plan& plan, const Timeline& timeline);

}  // namespace dovetail::plan
