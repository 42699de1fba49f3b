#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/cli/simulate/hybrid_cluster.h"
#include "dovetail/report/line_chart.h"

namespace dovetail::cli {

/// Studies of `dovetail simulate hybrid`. They simulate jobs that CPU cores and GPUs compute
/// together ("hybrid"). Results are compared with a paper on CPU-GPU cluster scheduling with uneven
/// shards, for k-means.

/// Row of the paper's table: mean and variance of the seconds of k-means on 819,200 x 100 rows, on
/// one node of 16 cores. Only the last row is the paper's own program. It compares itself with the
/// OpenMP and CUDA programs of the Rodinia benchmarks.
struct PaperRow {
  const char* program;
  double seconds, variance;
};
inline constexpr PaperRow kRodiniaCpu{"Rodinia, 16 cores", 33.87, 1.079},
    kRodiniaGpu{"Rodinia, 1 GPU", 29.83, 0.224},
    kPaperHybrid{"the paper's, 15 cores and 1 GPU", 23.8, 3.443};

/// Interpretation of the paper, which leaves some details open.
struct Reading {
  std::string name;       ///< description of the interpretation, as a sentence
  HybridCluster cluster;  ///< cluster and job that follow from it
  /// True if the cluster's speeds were fitted to the time of the paper's hybrid run. In that case a
  /// study does not compare the time of its hybrid run with the paper's.
  bool fitted = false;
};

/// Returns two readings of the paper. It gives no times of its own program on cores or on a GPU
/// alone.
///
/// 1. Its cores and its GPU are as fast as in Rodinia's programs.
/// 2. Both are slower by the same factor. With this factor, the best division takes exactly the
///    time of the paper's hybrid run.
///
/// `overrides` are key=value settings of sections job, network and sharing.
std::vector<Reading> paper_readings(const std::vector<std::string>& overrides);
/// Returns the assumptions about details that the paper leaves open, as sentences.
std::vector<std::string> paper_assumptions(const HybridCluster& cluster);

struct StudyOptions {
  /// `nodes` is the maximum number of nodes in `study`, `most_nodes` in study_scale. `runs` is the
  /// number of runs per NodeCase, with seeds from `seed` on.
  int64_t nodes = 6, most_nodes = 1024, runs = 200, seed = 0;
  /// True if the cluster is the paper's. Results are then compared with the paper's figures.
  bool paper = true;
};

/// Simulated runs on one node with some of its devices. The runs differ by their seed.
struct NodeCase {
  std::string devices;  ///< example: "15 CPU cores and 1 GPU"
  /// `seconds` and `variance` are the mean and variance of the duration of a run. `best_s` is a
  /// lower bound of this duration in seconds, for any schedule without noise.
  double seconds = 0, variance = 0, best_s = 0;
  std::optional<PaperRow> paper = std::nullopt;  ///< figures of the paper for these devices
};

/// Simulated runs of one job on `nodes` nodes with `gpus` GPUs each, without noise.
struct NodesCase {
  int64_t nodes = 1, gpus = 1;
  /// Seconds of the job with cores alone, GPUs alone, both, and one core of one node.
  double cpu_s = 0, gpu_s = 0, hybrid_s = 0, serial_s = 0;
  /// Lower bound of hybrid_s: no messages, no starts, and each slot computes whole shards.
  double least_s = 0;
  /// Returns the speed-up of the hybrid run over one core.
  double speed_up() const { return serial_s / hybrid_s; }
  /// Means over the iterations of the hybrid run. `core_task_s` and `gpu_task_s` are the seconds
  /// that one core and one GPU compute in an iteration. `iteration_s` is the duration of a whole
  /// iteration. It includes time in which neither computes.
  double core_task_s = 0, gpu_task_s = 0, iteration_s = 0;
  /// Seconds that one GPU computes in an iteration with GPUs alone.
  double gpu_alone_task_s = 0;
};

/// Claim of the paper, tested by simulation.
struct Claim {
  /// `text`: the claim; `found`: the figures that the simulation found for it.
  std::string text, found;
  bool confirmed = false;
};

/// Results of `study` for one reading.
struct ReadingResult {
  std::string name;                     ///< Reading::name
  std::vector<NodeCase> one_node = {};  ///< results on one node
  /// Results on 1, 2, ... nodes with one GPU each, then with two GPUs each.
  std::vector<NodesCase> nodes = {};
  std::vector<Claim> claims = {};
};
/// Simulates a reading on one node and on several nodes, and tests the paper's claims. All
/// simulated nodes are like the first node of the reading's cluster.
ReadingResult study(const Reading& reading, const StudyOptions& options);

/// Simulation of an iteration over `rows` rows, on `nodes` nodes with `devices` devices in total.
/// `events` counts the simulated events.
struct ScaleCase {
  int64_t nodes = 0, devices = 0, rows = 0, events = 0;
  /// Seconds of an iteration. `tree_s`: the sums of the nodes are added along a tree. `ranks_s`:
  /// the sums are added one after another. `minimum_s`: lower bound for both.
  double tree_s = 0, ranks_s = 0, minimum_s = 0;
  double wall_s = 0;  ///< real seconds that the simulations took
};
/// Simulates 1, 2, 4, ... up to most_nodes nodes. The number of rows grows with the number of
/// nodes.
std::vector<ScaleCase> study_scale(const HybridCluster& cluster, const StudyOptions& options);

/// Effect of the cluster's faults on its job.
struct FaultsCase {
  double without_s = 0, with_s = 0;  ///< seconds of the job without faults, and with them
  int64_t restarts = 0;  ///< number of times that an iteration began again because a node was lost
  /// Devices and nodes that got no more shards after faults, each with the reason.
  std::vector<std::string> left_out = {};
};
/// Simulates all nodes of the cluster without its faults, then with them.
FaultsCase study_faults(const HybridCluster& cluster, uint64_t seed);

/// Returns a chart of the job's seconds by number of nodes: CPU cores, GPUs, and both.
report::LineChart chart_of_nodes(const ReadingResult& result);
/// Returns a chart of the speed-up over one core by number of nodes: CPU cores, GPUs, and both.
/// Each node has one GPU.
report::LineChart chart_of_speed_up(const ReadingResult& result);
/// Returns a chart of the seconds in ScaleCase (tree_s, ranks_s, minimum_s) by number of nodes.
report::LineChart chart_of_scale(const std::vector<ScaleCase>& cases);

}  // namespace dovetail::cli
