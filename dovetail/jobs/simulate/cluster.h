#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "dovetail/comm/cost_model.h"
#include "dovetail/jobs/simulate/node.h"

namespace dovetail::jobs {

/// Route of messages in an iteration of n nodes. The first node sends parameters to the others and
/// at the end gets the total of their sums.
enum class MergeOrder {
  /// Binomial tree with ceil(log2 n) rounds. In round k = 0, 1, ..., the nodes whose ranks r are
  /// multiples of 2^(k+1) add sums. Node r adds the sum of node r + 2^k to its own. Parameters take
  /// the opposite way.
  kTree,
  /// The first node sends to and receives from the others one by one, in the order of their ranks.
  kRanks,
};
/// Parses "tree" or "ranks". Throws UserError for another name.
MergeOrder parse_merge_order(std::string_view name);

/// Returns the time at which each of `nodes` nodes has the parameters. The first node has them at
/// begin_s. A message of `bytes` bytes goes over `link` to each other node.
std::vector<double> published_s(MergeOrder order, const comm::Link& link, double bytes,
                                size_t nodes, double begin_s);
/// Returns the time at which the first node has the total of the sums of all nodes. Node i has its
/// own sum at ready_s[i]. A sum has `bytes` bytes; adding one to another takes add_s seconds.
double merged_s(MergeOrder order, const comm::Link& link, double bytes, double add_s,
                std::vector<double> ready_s);

/// Simulated job. Each iteration computes all rows, in shards of `grain` rows.
struct SimJob {
  /// Number of rows, of rows per shard, and of iterations.
  int64_t rows = 0, grain = 1, iterations = 1;
  double parameter_bytes = 0;  ///< bytes of the parameters, sent to each node per iteration
  double partial_bytes = 0;    ///< bytes of the sum that a node computes in an iteration
  /// Seconds that the first node takes to compute the next parameters from the total of all sums.
  double update_s = 0;
};

struct SimOptions {
  /// Options of each node's Scheduler; `policy` and `hysteresis` also hold among nodes.
  SchedulerOptions scheduling = {};
  MergeOrder merge = MergeOrder::kTree;  ///< route of parameters and sums
  comm::Link network = {};               ///< speed of the links between nodes
  double merge_add_s = 0;                ///< seconds to add the sum of one node to another
  double restart_s = 10;  ///< seconds from a failed attempt at an iteration to the next attempt
  std::vector<SimFault> faults = {};   ///< faults to simulate
  uint64_t seed = 0;                   ///< seed of the noise in the times of devices
  SimNodeRun::Observer observer = {};  ///< called with each event; empty: none
};

struct SimIteration {
  /// Times of the last attempt, the execution of the iteration in which no node was lost. The
  /// attempt begins at begin_s. At computed_s, all nodes have their sums. At end_s, the parameters
  /// have been updated.
  double begin_s = 0, computed_s = 0, end_s = 0;
  /// Number of attempts, including those that failed because a node was lost.
  int64_t attempts = 1;
  std::vector<int64_t> rows;  ///< rows that each node computed in the last attempt
};

struct SimResult {
  double seconds = 0;  ///< virtual duration of the job
  std::vector<SimIteration> iterations;
  std::vector<std::vector<SimDeviceUse>> devices;  ///< work of each device of each node
  /// One text per node: the reason why it was lost; empty if it was not.
  std::vector<std::string> lost;
  int64_t events = 0;  ///< number of simulated events
};

/// Simulates a job on a cluster in virtual time: devices compute nothing and only take their time.
/// An attempt at an iteration has these steps:
/// 1. Each node gets a range of the shards (its share).
/// 2. The first node sends the parameters to the others.
/// 3. Each node computes its range and adds the results (partials) of its shards. Within the node,
///    a Scheduler (jobs/scheduler.h) drives the simulated devices, as it drives real executors.
/// 4. The sums of the nodes are added up, and the first node updates the parameters.
///
/// Shares follow the times of the nodes in earlier iterations, by `partition` (jobs/partition.h).
/// They change only if the gain exceeds SchedulerOptions::hysteresis. Nodes get equal shares while
/// the speed of any node is unknown. Under SharePolicy::kStatic, the sums of the devices' ratios
/// replace the times.
///
/// A node is lost if its Scheduler gives no more shards to any of its devices. The attempt then
/// fails after the other nodes have finished their ranges. The next attempt at the same iteration
/// begins restart_s seconds later, without the lost node. In the last attempt, each shard counts
/// exactly once.
///
/// The same seed gives the same result and the same events. Throws UserError if no node is left, or
/// if the devices' memories hold fewer rows than the job has.
SimResult simulate(const std::vector<SimNode>& nodes, const SimJob& job,
                   const SimOptions& options = {});

/// Returns a lower bound of the job's seconds under any schedule. It is rows * iterations, divided
/// by the sum of all slots' speeds in rows per second. Start times, messages and noise are ignored.
double minimum_seconds(const std::vector<SimNode>& nodes, const SimJob& job);
/// Returns a higher lower bound: a slot computes whole shards, one after another.
double minimum_seconds_in_shards(const std::vector<SimNode>& nodes, const SimJob& job);

}  // namespace dovetail::jobs
