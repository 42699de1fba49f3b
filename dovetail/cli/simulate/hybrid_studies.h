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

/// The table of the paper (CPU-GPU cluster scheduling with uneven shards, k-means): seconds and
/// variance of a run on one node of 16 cores.
struct PaperRow {
  const char* devices;
  double seconds, variance;
};
inline constexpr PaperRow kPaperCpu{"16 CPU cores", 33.87, 1.079}, kPaperGpu{"1 GPU", 29.83, 0.224},
    kPaperHybrid{"CPU cores and 1 GPU", 23.8, 3.443};

/// What a study's verdicts rest on where the paper leaves it open: a sentence and a cluster.
struct Reading {
  std::string name;
  HybridCluster cluster;
  bool fitted = false;  ///< to the time of the paper's hybrid, which it then does not judge
};

/// The paper's cluster in two readings: all of its times are shared among devices, or each of its
/// runs has as many seconds that are not as make the best partition of its own speeds take its
/// hybrid's time. `overrides` of job, network and sharing; speeds are such that its CPU and GPU
/// alone take its times whatever the job.
std::vector<Reading> paper_readings(const std::vector<std::string>& overrides);
/// What the paper does not say, as sentences.
std::vector<std::string> paper_assumptions(const HybridCluster& cluster);

struct StudyOptions {
  int64_t nodes = 6, most_nodes = 1024, runs = 200, seed = 0;
  bool paper = true;  ///< the cluster is the paper's: its figures stand beside
};

/// Devices of one node, over seeds.
struct NodeCase {
  std::string devices;
  double seconds = 0, variance = 0,
         best_s = 0;  ///< mean; of runs; no schedule is faster without noise
  std::optional<PaperRow> paper = std::nullopt;
};

/// One job on so many nodes, by what computes.
struct NodesCase {
  int64_t nodes = 1, gpus = 1;
  double cpu_s = 0, gpu_s = 0, hybrid_s = 0;
  double speed_up() const { return std::min(cpu_s, gpu_s) / hybrid_s; }
  // Of the hybrid, in an iteration: what a core and a GPU computed, and its part that was spent on
  // neither.
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
  std::vector<NodesCase> nodes = {};  ///< one GPU, then two GPUs a node
  std::vector<Claim> claims = {};
};
/// On nodes of the cluster's first kind.
ReadingResult study(const Reading& reading, const StudyOptions& options);

/// Rows that grow with the nodes.
struct ScaleCase {
  int64_t nodes = 0, devices = 0, rows = 0, events = 0;
  double tree_s = 0, ranks_s = 0, least_s = 0;  ///< of an iteration
  double wall_s = 0;                            ///< of simulating both
};
std::vector<ScaleCase> study_scale(const HybridCluster& cluster, const StudyOptions& options);

/// The cluster as it is, without its faults and with them.
struct FaultsCase {
  double without_s = 0, with_s = 0;
  int64_t restarts = 0;
  std::vector<std::string> left_out = {};  ///< devices and nodes, with their reasons
};
FaultsCase study_faults(const HybridCluster& cluster, uint64_t seed);

/// Seconds by number of nodes.
report::LineChart chart_of_nodes(const ReadingResult& result);
report::LineChart chart_of_speed_up(const std::vector<ReadingResult>& results);
report::LineChart chart_of_scale(const std::vector<ScaleCase>& cases);

}  // namespace dovetail::cli
