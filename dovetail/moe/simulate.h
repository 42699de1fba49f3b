#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/comm/cost_model.h"

namespace dovetail::moe {

/// Load of one mixture-of-experts layer in a step. Each expert has two matrices: width x hidden and
/// hidden x width.
struct LayerLoad {
  int ranks = 1;
  int experts = 1;
  /// Number of ranks over which each expert is cut, as in Placement. 0: the minimum that gives
  /// every rank a part of an expert.
  int cut = 0;
  int64_t tokens = 1;  ///< tokens of each rank
  int64_t width = 1;   ///< C, elements of a token
  int64_t hidden = 1;  ///< hidden elements of an expert
  int top_k = 1;       ///< experts of each token; a choice is one of them
  /// Bytes of a whole row on the way to the experts (`row_bytes` of comm/payload.h). A row is a
  /// token that is sent to one expert.
  double row_bytes = 4;
  double other_row_bytes = 4;  ///< bytes of a row on the way back, and of a row's gradient
  double parameter_bytes = 4;  ///< bytes of one parameter when experts are sent
  /// Expert i = 0, 1, ... gets a share of the choices proportional to (i + 1)^-skew.
  double skew = 0;
  std::vector<double> choices_of =
      {};  ///< relative numbers of choices of the experts; empty: computed from `skew`
  /// true: a token travels once to each rank that has some of its experts (moe/row_exchange.h). A
  /// weight and an index travel for each choice. false: a token travels once for each choice, as in
  /// Tutel.
  bool once_per_rank = true;
  /// Places of each expert for the tokens of one rank, if rows are padded to a capacity. Each place
  /// then travels. 0: rows are not padded.
  double capacity = 0;
};

/// Distribution and overlap of a layer. Members are as in ExpertLayout (moe/parallel_experts.h),
/// with one exception: `shadowed` is the number of shadowed experts. These are the experts with the
/// most choices; all ranks gather them.
struct LayerPlan {
  comm::AllToAllAlgorithm algorithm = comm::AllToAllAlgorithm::kLinear;
  int overlap = 1;
  int shards = 1;
  int shadowed = 0;
};

/// Simulated seconds of a step of a layer, for the slowest rank.
struct LayerTime {
  LayerPlan plan;
  /// forward_s and backward_s: seconds of the slowest rank. compute_s: seconds in which the busiest
  /// rank computes, forward and backward. In the rest of the time, the rank waits or communicates
  /// without computing.
  double forward_s = 0, backward_s = 0, compute_s = 0;
  double total_s() const { return forward_s + backward_s; }
};

/// Simulates a step of the layer by discrete events. Every rank has one stream for communication
/// and one for computation. Tokens are split into plan.overlap chunks. Dispatch i sends the rows of
/// chunk i to the experts, combine i sends the results back. The order of communication is the same
/// on all ranks: dispatch 0, dispatch 1, combine 0, dispatch 2, combine 1, ...
///
/// Shadowed experts travel from their owner to every other rank, and their gradients back. With r =
/// 0 the experts are gathered in forward and again in backward, and their gradients are scattered.
/// Only the share model.overlap_share of the time that overlap could hide is hidden.
///
/// A chunk is computed when it has arrived. An exchange ends on a rank when all its data is sent
/// and the last sender's data has arrived. Links carry both directions at once and are not shared
/// with other ranks. Backward exchanges the same rows as forward in the other direction and
/// computes twice as much. The times are predictions; model.source tells where the model's numbers
/// come from. Throws UserError if `load` or `plan` does not fit the ranks.
LayerTime simulate(const comm::CostModel& model, const LayerLoad& load, const LayerPlan& plan);

/// Returns the `count` experts with the largest choices[e], in ascending order of e. Ties go to the
/// lowest index.
std::vector<int64_t> experts_by_load(const std::vector<double>& choices, int count);

/// Simulates all plans for a load: four algorithms, overlap 1 to 8, every `shards`, and 0, 1, 2, 4,
/// ... shadowed experts up to `most_shadowed`. `shards` = 0 sends no rows, so it is simulated once.
/// Returns the fastest plan first. Plans with equal times keep the order of simulation.
std::vector<LayerTime> simulate_all(const comm::CostModel& model, const LayerLoad& load,
                                    int most_shadowed = 8);

/// Measures the forward pass of an even load with shards = 1 on the ranks of `group`. It runs real
/// all-to-alls of rows, which overlap with matrix products of the experts' sizes. Returns the
/// median seconds of the slowest rank. All ranks call it together. Throws UserError unless each
/// rank has one expert and its rows form equal parts for all chunks and ranks. `device`: place of
/// rows and products.
double measure_forward(const std::shared_ptr<comm::Group>& group, const LayerLoad& load,
                       int overlap, int repeats, at::Device device = at::kCPU);

}  // namespace dovetail::moe
