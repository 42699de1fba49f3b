#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail {

/// A class of links in the alpha-beta model: a rank that sends m messages of b bytes in all is busy
/// for m alpha + b beta, alpha = `latency_s`, beta = 1 / `bytes_per_s`.
struct Link {
  double latency_s = 0, bytes_per_s = 1;
  double seconds(double messages, double bytes) const {
    return messages * latency_s + bytes / bytes_per_s;
  }
};

/// What moving and computing costs on a machine or a cluster.
///
/// As a file: {"ranks_per_node": 8, "inside": {"latency_s": ..., "bytes_per_s": ...}, "between":
/// {...}, "copy_bytes_per_s": ..., "call_s": ..., "flops": ..., "source": "..."}. `between` may be
/// absent: one node.
struct CostModel {
  int ranks_per_node = 1;
  Link inside;
  std::optional<Link> between;
  double copy_bytes_per_s = 1;  ///< of a stride copy on one rank
  double call_s = 0;            ///< of one matrix product, however small
  double flops = 1;             ///< of large matrix products, a second and a rank
  std::string source;           ///< where the figures come from, shown beside every result
};
nlohmann::ordered_json to_json(const CostModel& model);
/// Throws UserError naming the key that is missing, unknown or not positive.
CostModel parse_cost_model(const nlohmann::json& json, const std::string& where);
CostModel read_cost_model(const std::filesystem::path& path);

/// How rows of an all-to-all travel, and how they lie when they are there: flexible is Tutel's
/// (E/W, W C, M) layout, where each expert's rows are one matrix; the others leave one for each
/// sending rank.
enum class AllToAllAlgorithm { kLinear, kHierarchical, kFlexible, kHierarchicalFlexible };
std::string_view name(
    AllToAllAlgorithm algorithm);  ///< "linear", "2dh", "flexible", "2dh_flexible"
bool is_hierarchical(AllToAllAlgorithm algorithm);
bool is_flexible(AllToAllAlgorithm algorithm);

/// Predicted seconds of an all-to-all of `ranks` with `bytes_per_pair` for each pair, all starting
/// together: (n - m) messages between nodes and (m - 1) inside for linear; for hierarchical (m - 1)
/// of N times the bytes inside and (N - 1) of m times the bytes between nodes, and two stride
/// copies. UserError where nodes are needed but `between` is absent, or ranks do not fill nodes.
double all_to_all_seconds(const CostModel& model, int ranks, double bytes_per_pair,
                          AllToAllAlgorithm algorithm);

/// A measured all-to-all of one rank: what it sent, and how long the slowest rank took.
struct LinkSample {
  double messages = 0, bytes = 0, seconds = 0;
};
/// The link with the least sum of squared relative errors over `samples` (at least two, of
/// different bytes); neither figure below zero.
Link fit_link(const std::vector<LinkSample>& samples);

/// Measured on the ranks of `world`, all together: all-to-alls of growing size inside the node and,
/// where there are several, between nodes; stride copies and matrix products while all ranks do the
/// same. The same on every rank.
struct Calibration {
  CostModel model;
  std::vector<LinkSample> fitted;    ///< what `inside` was fitted to
  std::vector<LinkSample> held_out;  ///< other sizes, for comparison
};
Calibration calibrate(Group& world, int ranks_per_node);

/// Median over `repeats` of the slowest rank's seconds in `work`, which ranks start together. All
/// ranks together.
double slowest_rank_seconds(Group& group, int repeats, const std::function<void()>& work);

/// That of an all-to-all of `bytes` for each pair.
double measure_all_to_all(Group& group, int64_t bytes, int repeats);

}  // namespace dovetail
