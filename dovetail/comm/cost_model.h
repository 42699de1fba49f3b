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

/// Speed of one class of links in the alpha-beta model. A rank that sends m messages with b bytes
/// in total is busy for m alpha + b beta seconds. alpha = `latency_s`, beta = 1 / `bytes_per_s`.
struct Link {
  double latency_s = 0, bytes_per_s = 1;
  double seconds(double messages, double bytes) const {
    return messages * latency_s + bytes / bytes_per_s;
  }
};

/// Costs of communication and computation on a machine or a cluster.
///
/// File format: {"ranks_per_node": 8, "inside": {"latency_s": ..., "bytes_per_s": ...}, "between":
/// {...}, "copy_bytes_per_s": ..., "call_s": ..., "flops": ..., "source": "..."}. `between` is
/// absent for a single node.
struct CostModel {
  int ranks_per_node = 1;
  Link inside;
  std::optional<Link> between;
  double copy_bytes_per_s = 1;  ///< rate of a strided copy on one rank
  double call_s = 0;            ///< minimum seconds of one matrix product
  double flops = 1;             ///< FLOP/s of large matrix products, per rank
  std::string source;           ///< origin of the figures, shown with every result
};
nlohmann::ordered_json to_json(const CostModel& model);
/// Throws UserError if a key is missing, unknown or not positive, and names the key. `where` is the
/// prefix of the message.
CostModel parse_cost_model(const nlohmann::json& json, const std::string& where);
CostModel read_cost_model(const std::filesystem::path& path);

/// Route and result layout of an all-to-all. Flexible algorithms return Tutel's layout (E/W, W C,
/// M), in which the rows of each expert are one matrix. The others return one matrix per expert and
/// sending rank. Hierarchical ones take the two stages of `Exchange`.
enum class AllToAllAlgorithm { kLinear, kHierarchical, kFlexible, kHierarchicalFlexible };
/// "linear", "2dh", "flexible" or "2dh_flexible".
std::string_view name(AllToAllAlgorithm algorithm);
bool is_hierarchical(AllToAllAlgorithm algorithm);
bool is_flexible(AllToAllAlgorithm algorithm);

/// Predicted seconds of an all-to-all with `bytes_per_pair` per pair of ranks. All ranks start
/// together. n = `ranks`, m = ranks per node, N = nodes.
///
/// Linear: n - m messages between nodes and m - 1 inside. Hierarchical: m - 1 messages of N times
/// the bytes inside, N - 1 of m times the bytes between nodes, and two stride copies. Throws
/// UserError if there are several nodes but no `between`, or if m does not divide n.
double all_to_all_seconds(const CostModel& model, int ranks, double bytes_per_pair,
                          AllToAllAlgorithm algorithm);

/// Measurement of one all-to-all: messages and bytes that one rank sent, and the slowest rank's
/// seconds.
struct LinkSample {
  double messages = 0, bytes = 0, seconds = 0;
};
/// Fits a link to `samples` by least squares of relative errors. Needs two or more samples with
/// different numbers of bytes. Neither latency nor bandwidth is negative.
Link fit_link(const std::vector<LinkSample>& samples);

/// Result of `calibrate`, which measures the cost model on the ranks of `world`. All ranks call it
/// together and get the same result. It times all-to-alls of growing size inside a node and, if
/// there are several, between nodes. It also times stride copies and matrix products, run by all
/// ranks at the same time.
struct Calibration {
  CostModel model;
  std::vector<LinkSample> fitted;    ///< samples that `inside` was fitted to
  std::vector<LinkSample> held_out;  ///< samples of other sizes, to check the fit
};
Calibration calibrate(Group& world, int ranks_per_node);

/// Runs `work` `repeats` times on all ranks at once. Returns the median of the slowest rank's
/// seconds. All ranks of `group` call it together.
double slowest_rank_seconds(Group& group, int repeats, const std::function<void()>& work);

/// Median seconds of an all-to-all of `bytes` per pair of ranks, as `slowest_rank_seconds`.
double measure_all_to_all(Group& group, int64_t bytes, int repeats);

}  // namespace dovetail::comm
