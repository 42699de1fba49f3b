#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/comm/cost_model.h"

namespace dovetail::moe {

/// One layer of experts, as a step sees it. Each expert is two matrices, width x hidden and back.
struct LayerLoad {
  int ranks = 1;
  int experts = 1;     ///< a multiple of `ranks`, or `ranks` a multiple of it
  int64_t tokens = 1;  ///< of each rank
  int64_t width = 1;   ///< C
  int64_t hidden = 1;  ///< of an expert
  int top_k = 1;
  double row_bytes = 4;        ///< of a row on its way to the experts, in all (`row_bytes` of comm/payload.h)
  double other_row_bytes = 4;  ///< of a row on its way back, and of gradients
  double parameter_bytes = 4;  ///< of one parameter when experts move
  double skew = 0;             ///< expert i of 0, 1, ... gets a share of the choices in proportion to (i + 1)^-skew
};

/// How a layer is spread and overlapped. `shards` is Tutel's r (arXiv 2206.03382, section 3.1): with g = max(1, ranks /
/// experts) ranks for each expert, r divides g and each expert is cut into r shards along `hidden`, whose ranks all get
/// its rows; the g / r replicas gather the rest of their shard. 0: data parallel, every rank gathers all experts and no
/// row moves. `shadowed`: this many of the experts with the most rows are sent to all ranks instead of their rows
/// (FasterMoE). `overlap`: chunks of rows whose exchange and computation overlap.
struct LayerPlan {
  AllToAllAlgorithm algorithm = AllToAllAlgorithm::kLinear;
  int overlap = 1;
  int shards = 1;
  int shadowed = 0;
};

/// Seconds, of the slowest rank. `compute_s` is what the busiest rank computes: the rest of the time is communication
/// that nothing hides, and waiting.
struct LayerTime {
  LayerPlan plan;
  double forward_s = 0, backward_s = 0, compute_s = 0;
  double total_s() const { return forward_s + backward_s; }
};

/// Discrete simulation of a step of the layer: every rank has a stream for communication, whose order is the same on
/// all (dispatch 0, dispatch 1, combine 0, dispatch 2, combine 1, ...), and one for computation. A chunk is computed
/// when it has arrived; an exchange ends on a rank when it has sent all and the last sender has reached it. Links carry
/// both directions at once and are not shared with other ranks; backward exchanges what forward did the other way round
/// and computes twice as much. It is a model: its figures are predictions from `model.source`.
/// Throws UserError for loads and plans that do not fit the ranks.
LayerTime simulate(const CostModel& model, const LayerLoad& load, const LayerPlan& plan);

/// Every plan that fits: four algorithms, overlap 1 to 8, all r, and 0, 1, 2, 4, ... shadowed experts up to
/// `most_shadowed`, fastest first (then in that order).
std::vector<LayerTime> simulate_all(const CostModel& model, const LayerLoad& load, int most_shadowed = 8);

/// The first half of an even load (forward, r = 1) as it really runs on the ranks of `group`: all-to-alls of rows,
/// overlapped with matrix products of the experts' sizes. Median seconds of the slowest rank. All ranks together.
double measure_forward(const std::shared_ptr<Group>& group, const LayerLoad& load, int overlap, int repeats);

}  // namespace dovetail::moe
