#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/comm/cost_model.h"

namespace dovetail::moe {

/// Load of one expert layer in a step. Each expert has two matrices: width x hidden and hidden x
/// width.
struct LayerLoad {
  int ranks = 1;
  int experts = 1;
  int cut = 0;         ///< as in Placement; 0: the minimum by which all ranks have an expert
  int64_t tokens = 1;  ///< tokens of each rank
  int64_t width = 1;   ///< C, elements of a token
  int64_t hidden = 1;  ///< hidden elements of an expert
  int top_k = 1;
  /// Total bytes of a row on the way to the experts (`row_bytes` of comm/payload.h).
  double row_bytes = 4;
  double other_row_bytes = 4;  ///< bytes of a row on the way back, and of gradients
  double parameter_bytes = 4;  ///< bytes of one parameter when experts are sent
  /// Expert i = 0, 1, ... gets a share of the choices proportional to (i + 1)^-skew.
  double skew = 0;
  std::vector<double> choices_of =
      {};  ///< choices of each expert, in place of `skew`; empty: by `skew`
};

/// Distribution and overlap of a layer, as in ExpertLayout (moe/parallel_experts.h). All ranks
/// gather the `shadowed` experts with the largest numbers of rows.
struct LayerPlan {
  comm::AllToAllAlgorithm algorithm = comm::AllToAllAlgorithm::kLinear;
  int overlap = 1;
  int shards = 1;
  int shadowed = 0;
};

/// Simulated seconds of the slowest rank. `compute_s` is the computation of the busiest rank. The
/// rest of the time is waiting and communication that does not overlap with computation.
struct LayerTime {
  LayerPlan plan;
  double forward_s = 0, backward_s = 0, compute_s = 0;
  double total_s() const { return forward_s + backward_s; }
};

/// Simulates a step of the layer by discrete events. Every rank has one stream for communication
/// and one for computation. The order of communication is the same on all ranks: dispatch 0,
/// dispatch 1, combine 0, dispatch 2, combine 1, ...
///
/// A chunk is computed when it has arrived. An exchange ends on a rank when all its data is sent
/// and the last sender's data has arrived. Links carry both directions at once and are not shared
/// with other ranks. Backward exchanges the same rows as forward in the other direction and
/// computes twice as much. Figures are predictions of a model from `model.source`. Throws UserError
/// if loads or plans do not fit the ranks.
LayerTime simulate(const comm::CostModel& model, const LayerLoad& load, const LayerPlan& plan);

/// Returns the `count` experts with the largest `choices`, in ascending order. Among equal experts
/// the first ones count.
std::vector<int64_t> most_loaded(const std::vector<double>& choices, int count);

/// Simulates every plan that fits. These are four algorithms, overlap 1 to 8, all r, and 0, 1, 2,
/// 4, ... shadowed experts up to `most_shadowed`. Returns the fastest plan first; equal plans keep
/// that order.
std::vector<LayerTime> simulate_all(const comm::CostModel& model, const LayerLoad& load,
                                    int most_shadowed = 8);

/// Measures forward of an even load with r = 1 on the ranks of `group`. It runs real all-to-alls of
/// rows, which overlap with matrix products of the experts' sizes. Returns the median seconds of
/// the slowest rank. All ranks call it together.
double measure_forward(const std::shared_ptr<comm::Group>& group, const LayerLoad& load,
                       int overlap, int repeats);

}  // namespace dovetail::moe
