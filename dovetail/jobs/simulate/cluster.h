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
  /// Binomial tree with ceil(log2 n) rounds. A node adds the sums of the nodes whose ranks are
  /// larger by 1, 2, 4, ... in this order. Parameters take the opposite way.
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
  /// Times of the last attempt. It begins at begin_s. At computed_s, all nodes have their sums. The
  /// parameters are updated at end_s.
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
/// Shards are divided among nodes by `partition` (jobs/partition.h), from the times of earlier
/// iterations. Nodes get equal shares while the speed of any node is unknown. Shares change only if
/// the gain exceeds SchedulerOptions::hysteresis. Within a node, a Scheduler (jobs/scheduler.h)
/// drives the simulated devices, as it drives real executors.
///
/// In an iteration, the first node sends the parameters to the others. Each node computes its range
/// of shards and adds their partials. The sums of the nodes are added up, and the first node
/// updates the parameters. A node is lost if its Scheduler gives no more shards to any of its
/// devices. The other nodes then finish their current ranges, and the attempt has failed. The next
/// attempt begins restart_s seconds later, without the lost node. In the last attempt of an
/// iteration, each shard counts exactly once.
///
/// The same seed gives the same result and the same events. Throws UserError if no node is left, or
/// if the devices' memories hold fewer rows than the job has.
SimResult simulate(const std::vector<SimNode>& nodes, const SimJob& job,
                   const SimOptions& options = {});

/// Returns a lower bound of the job's seconds under any schedule. It is rows * iterations, divided
/// by the sum of all slots' speeds in rows per second. Start times, messages and noise are ignored.
double minimum_seconds(const std::vector<SimNode>& nodes, const SimJob& job);

}  // namespace dovetail::jobs
