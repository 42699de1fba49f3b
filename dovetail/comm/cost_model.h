#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail::comm {

/// Speed of network links in the alpha-beta model. A rank that sends m messages with b bytes in
/// total is busy for m alpha + b beta seconds. alpha = `latency_s`, beta = 1 / `bytes_per_s`.
struct Link {
  double latency_s = 0, bytes_per_s = 1;
  double seconds(double messages, double bytes) const {
    return messages * latency_s + bytes / bytes_per_s;
  }
};

/// Costs of communication and computation on a machine or a cluster.
///
/// File format: {"ranks_per_node": 8, "inside": {"latency_s": ..., "bytes_per_s": ...}, "between":
/// {...}, "copy_bytes_per_s": ..., "call_s": ..., "flops": ..., "overlap_share": ..., "source":
/// "..."}. `between` is absent for a single node. `overlap_share` is optional.
struct CostModel {
  int ranks_per_node = 1;
  Link inside;                  ///< links between ranks of one node
  std::optional<Link> between;  ///< links between ranks of different nodes
  /// Rate at which one rank copies rows into another order (strided copy).
  double copy_bytes_per_s = 1;
  double call_s = 0;  ///< minimum seconds of one matrix product
  double flops = 1;   ///< FLOP/s of large matrix products, per rank
  /// Share of an exchange's time that a product of equal length hides, from 0 to 1. It is low where
  /// the processor that computes also moves the rows.
  double overlap_share = 1;
  std::string source;  ///< origin of these numbers, shown with every result
};
nlohmann::ordered_json to_json(const CostModel& model);
/// Inverse of `to_json`. Throws UserError if a key is missing, unknown or not positive, and names
/// the key. `latency_s` and `call_s` may be 0. `where` is the prefix of the message.
CostModel parse_cost_model(const nlohmann::json& json, const std::string& where);
CostModel read_cost_model(const std::filesystem::path& path);

/// Route and result layout of the all-to-all that brings rows to their experts. There are E experts
/// on W ranks, and each rank sends C rows of M elements to each expert.
///
/// Flexible algorithms return Tutel's layout (E/W, W C, M), in which the rows of each expert are
/// one matrix. The other algorithms return one matrix per expert and sending rank. Hierarchical
/// algorithms have the two stages that `Exchange` (comm/exchange.h) describes.
enum class AllToAllAlgorithm { kLinear, kHierarchical, kFlexible, kHierarchicalFlexible };
/// Returns "linear", "2dh" (hierarchical), "flexible" or "2dh_flexible".
std::string_view name(AllToAllAlgorithm algorithm);
bool is_hierarchical(AllToAllAlgorithm algorithm);
bool is_flexible(AllToAllAlgorithm algorithm);

/// Returns the predicted seconds of an all-to-all in which each rank sends `bytes_per_pair` to each
/// rank. All ranks start together. n = `ranks`, m = ranks per node, N = nodes. Each rank sends
///
/// - linear: m - 1 messages inside its node and n - m messages between nodes, each of
///   `bytes_per_pair` bytes
/// - hierarchical: m - 1 messages of N * `bytes_per_pair` bytes inside its node, and N - 1 messages
///   of m * `bytes_per_pair` bytes between nodes. In addition, it makes two strided copies of its
///   rows.
///
/// Throws UserError if there are several nodes but no `between`, or if m does not divide n.
double all_to_all_seconds(const CostModel& model, int ranks, double bytes_per_pair,
                          AllToAllAlgorithm algorithm);

/// Measurement of one all-to-all: messages and bytes that one rank sent, and seconds of the slowest
/// rank.
struct LinkSample {
  double messages = 0, bytes = 0, seconds = 0;
};
/// Fits latency and bandwidth to `samples` by least squares of relative errors. Needs two or more
/// samples with different numbers of bytes (InternalError otherwise). Neither latency nor bandwidth
/// of the result is negative.
Link fit_link(const std::vector<LinkSample>& samples);

/// Result of `calibrate`.
struct Calibration {
  CostModel model;
  std::vector<LinkSample> fitted;  ///< samples to which `model.inside` was fitted
  /// Samples with other numbers of bytes, also inside a node, to check the fit.
  std::vector<LinkSample> held_out;
};
/// Measures the cost model on the ranks of `world`. All ranks call it together and get the same
/// result. It times all-to-alls of growing size inside a node and, if there are several nodes,
/// between nodes. It also times strided copies and matrix products on all ranks at the same
/// time. Products are also timed beside an exchange. `device`: place of rows and products.
Calibration calibrate(Group& world, int ranks_per_node, at::Device device = at::kCPU);

/// Runs `work` `repeats` times on all ranks at once. Takes the time of the slowest rank in each
/// repetition, and returns the median of these times in seconds. All ranks of `group` call it
/// together.
double slowest_rank_seconds(Group& group, int repeats, const std::function<void()>& work);

/// Measures an all-to-all in which each rank sends `bytes` to each rank. Returns the seconds as
/// `slowest_rank_seconds` does.
double measure_all_to_all(Group& group, int64_t bytes, int repeats, at::Device device = at::kCPU);

}  // namespace dovetail::comm
