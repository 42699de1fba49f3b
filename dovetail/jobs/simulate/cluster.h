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
  /// Binomial tree with ceil(log2 n) rounds. A node adds the sums of the nodes at distance 1, 2, 4,
  /// ... in this order. Parameters take the opposite way.
  kTree,
  kRanks,  ///< The first node serves the others one after another, in the order of their ranks.
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
  /// Seconds from the total of all sums to the parameters of the next iteration.
  double update_s = 0;
};

struct SimOptions {
  SchedulerOptions scheduling = {};  ///< division of shards among nodes, and among their devices
  MergeOrder merge = MergeOrder::kTree;  ///< route of parameters and sums
  comm::Link network = {};               ///< speed of the links between nodes
  double merge_add_s = 0;                ///< seconds to add the sum of one node to another
  double restart_s = 10;  ///< seconds from a failed attempt at an iteration to the next attempt
  std::vector<SimFault> faults = {};   ///< faults to simulate
  uint64_t seed = 0;                   ///< seed of the noise in the times of devices
  SimNodeRun::Observer observer = {};  ///< called with each event; empty: none
};

struct SimIteration {
  /// Times of the last attempt. It begins at begin_s. The last node has its sum at computed_s. The
  /// parameters are updated at end_s.
  double begin_s = 0, computed_s = 0, end_s = 0;
  int64_t attempts = 1;       ///< attempts, including the ones that failed because nodes were lost
  std::vector<int64_t> rows;  ///< rows that each node computed in the last attempt
};

struct SimResult {
  double seconds = 0;  ///< virtual duration of the job
  std::vector<SimIteration> iterations;
  std::vector<std::vector<SimDeviceUse>> devices;  ///< work of each device of each node
  std::vector<std::string> lost;  ///< reason why each node was lost; empty if it was not
  int64_t events = 0;             ///< number of simulated events
};

/// Simulates a job on a cluster in virtual time: devices compute nothing and only take their time.
/// Shards are divided among nodes by `partition` (jobs/partition.h), from the times of earlier
/// iterations. Nodes get equal shares while the speed of any node is unknown. Shares change only if
/// the gain exceeds SchedulerOptions::hysteresis. Within a node, the Scheduler that also drives
/// real executors drives the simulated devices.
///
/// In an iteration, the first node sends the parameters to the others. Each node computes its range
/// of shards and adds their partials. The sums of the nodes are added up, and the first node
/// updates the parameters. A node is lost if all its devices are left out. The others then finish
/// their current ranges, and the attempt has failed. The next attempt begins restart_s seconds
/// later, without the lost node. Each shard counts exactly once in the last attempt of an
/// iteration.
///
/// The same seed gives the same result and the same events. Throws UserError if no node is left, or
/// if the devices' memories hold fewer rows than the job has.
SimResult simulate(const std::vector<SimNode>& nodes, const SimJob& job,
                   const SimOptions& options = {});

/// Returns a lower bound of the job's seconds under any schedule. It is rows * iterations, divided
/// by the sum of all slots' speeds in rows per second. Start times, messages and noise are ignored.
double minimum_seconds(const std::vector<SimNode>& nodes, const SimJob& job);

}  // namespace dovetail::jobs
