#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/comm/cost_model.h"

namespace dovetail::moe {

/// One layer of experts, as a step sees it. Each expert is two matrices, width x hidden and back.
struct LayerLoad {
  int ranks = 1;
  int experts = 1;
  int cut = 0;         ///< as Placement's; 0: the least that gives all ranks an expert
  int64_t tokens = 1;  ///< of each rank
  int64_t width = 1;   ///< C
  int64_t hidden = 1;  ///< of an expert
  int top_k = 1;
  double row_bytes =
      4;  ///< of a row on its way to the experts, in all (`row_bytes` of comm/payload.h)
  double other_row_bytes = 4;  ///< of a row on its way back, and of gradients
  double parameter_bytes = 4;  ///< of one parameter when experts move
  double skew =
      0;  ///< expert i of 0, 1, ... gets a share of the choices in proportion to (i + 1)^-skew
  std::vector<double> choices_of = {};  ///< or to this, of each expert; empty: by skew
};

/// How a layer is spread and overlapped: as Plan (moe/parallel_experts.h), with `shadowed` the
/// number of experts with the most rows that all ranks gather.
struct LayerPlan {
  AllToAllAlgorithm algorithm = AllToAllAlgorithm::kLinear;
  int overlap = 1;
  int shards = 1;
  int shadowed = 0;
};

/// Seconds, of the slowest rank. `compute_s` is what the busiest rank computes: the rest of the
/// time is communication that nothing hides, and waiting.
struct LayerTime {
  LayerPlan plan;
  double forward_s = 0, backward_s = 0, compute_s = 0;
  double total_s() const { return forward_s + backward_s; }
};

/// Discrete simulation of a step of the layer: every rank has a stream for communication, whose
/// order is the same on all (dispatch 0, dispatch 1, combine 0, dispatch 2, combine 1, ...), and
/// one for computation. A chunk is computed when it has arrived; an exchange ends on a rank when it
/// has sent all and the last sender has reached it. Links carry both directions at once and are not
/// shared with other ranks; backward exchanges what forward did the other way round and computes
/// twice as much. It is a model: its figures are predictions from `model.source`. Throws UserError
/// for loads and plans that do not fit the ranks.
LayerTime simulate(const CostModel& model, const LayerLoad& load, const LayerPlan& plan);

/// The `count` experts with the most of `choices`, ascending; of equal ones the first.
std::vector<int64_t> most_loaded(const std::vector<double>& choices, int count);

/// Every plan that fits: four algorithms, overlap 1 to 8, all r, and 0, 1, 2, 4, ... shadowed
/// experts up to `most_shadowed`, fastest first (then in that order).
std::vector<LayerTime> simulate_all(const CostModel& model, const LayerLoad& load,
                                    int most_shadowed = 8);

/// The first half of an even load (forward, r = 1) as it really runs on the ranks of `group`:
/// all-to-alls of rows, overlapped with matrix products of the experts' sizes. Median seconds of
/// the slowest rank. All ranks together.
double measure_forward(const std::shared_ptr<Group>& group, const LayerLoad& load, int overlap,
                       int repeats);

}  // namespace dovetail::moe
