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

/// Row of the paper's table: seconds and variance of a run on one node of 16 cores. The paper is
/// about CPU-GPU cluster scheduling with uneven shards, for k-means.
struct PaperRow {
  const char* devices;
  double seconds, variance;
};
inline constexpr PaperRow kPaperCpu{"16 CPU cores", 33.87, 1.079}, kPaperGpu{"1 GPU", 29.83, 0.224},
    kPaperHybrid{"CPU cores and 1 GPU", 23.8, 3.443};

/// Reading of the paper where it leaves details open: a sentence, and the cluster that follows. The
/// verdicts of a study rest on one reading.
struct Reading {
  std::string name;
  HybridCluster cluster;
  /// The cluster is fitted to the time of the paper's hybrid run, so a study does not judge this
  /// time.
  bool fitted = false;
};

/// Returns the paper's cluster in two readings. In the first, devices share all of a run's time. In
/// the second, some seconds of each run are not shared among devices. Their number is such that the
/// best partition at these speeds takes the time of the paper's hybrid run. `overrides` change job,
/// network and sharing. For any job, speeds are such that CPU alone and GPU alone take the paper's
/// times.
std::vector<Reading> paper_readings(const std::vector<std::string>& overrides);
/// Returns the assumptions about details that the paper leaves open, as sentences.
std::vector<std::string> paper_assumptions(const HybridCluster& cluster);

struct StudyOptions {
  int64_t nodes = 6, most_nodes = 1024, runs = 200, seed = 0;
  /// The cluster is the paper's, so results are shown next to the paper's figures.
  bool paper = true;
};

/// Runs on one node with some of its devices, over several seeds.
struct NodeCase {
  std::string devices;
  /// Mean and variance over runs, and a lower bound: no schedule without noise is faster than
  /// `best_s`.
  double seconds = 0, variance = 0, best_s = 0;
  std::optional<PaperRow> paper = std::nullopt;
};

/// One job on `nodes` nodes, with CPU cores alone, GPUs alone, and both (hybrid).
struct NodesCase {
  int64_t nodes = 1, gpus = 1;
  double cpu_s = 0, gpu_s = 0, hybrid_s = 0;
  double speed_up() const { return std::min(cpu_s, gpu_s) / hybrid_s; }
  // Seconds per iteration of the hybrid run: computing of a core, computing of a GPU, whole
  // iteration. The iteration also includes the part that was spent on neither.
  double core_task_s = 0, gpu_task_s = 0, iteration_s = 0;
  double core_shard_s = 0, gpu_shard_s = 0;
};

struct Claim {
  std::string text, found;
  bool confirmed = false;
};

struct ReadingResult {
  std::string name;
  std::vector<NodeCase> one_node = {};
  std::vector<NodesCase> nodes = {};  ///< results for one GPU per node, then for two GPUs per node
  std::vector<Claim> claims = {};
};
/// Studies nodes of the cluster's first kind.
ReadingResult study(const Reading& reading, const StudyOptions& options);

/// Simulation in which the number of rows grows with the number of nodes.
struct ScaleCase {
  int64_t nodes = 0, devices = 0, rows = 0, events = 0;
  /// Seconds of an iteration: sums merged along a tree, merged one node after another, lower bound.
  double tree_s = 0, ranks_s = 0, least_s = 0;
  double wall_s = 0;  ///< seconds to simulate both orders of merging
};
std::vector<ScaleCase> study_scale(const HybridCluster& cluster, const StudyOptions& options);

/// Simulation of the cluster as it is, without its faults and with them.
struct FaultsCase {
  double without_s = 0, with_s = 0;
  int64_t restarts = 0;
  std::vector<std::string> left_out = {};  ///< devices and nodes that were left out, with reasons
};
FaultsCase study_faults(const HybridCluster& cluster, uint64_t seed);

/// Draws seconds by number of nodes.
report::LineChart chart_of_nodes(const ReadingResult& result);
report::LineChart chart_of_speed_up(const std::vector<ReadingResult>& results);
report::LineChart chart_of_scale(const std::vector<ScaleCase>& cases);

}  // namespace dovetail::cli
