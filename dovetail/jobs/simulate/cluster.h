#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "dovetail/comm/cost_model.h"
#include "dovetail/jobs/simulate/node.h"

namespace dovetail::jobs {

/// Order in which the first node sends parameters to the other nodes and receives their sums.
enum class MergeOrder {
  /// Binomial tree with ceil(log2 n) rounds. A node adds its neighbours at distance 1, 2, 4, ... in
  /// this order.
  kTree,
  kRanks,  ///< The first node serves the others one after another, in the order of their ranks.
};
/// Parses "tree" or "ranks". Throws UserError for another name.
MergeOrder parse_merge_order(std::string_view name);

/// Times of a transfer between at least one node and the first one. `published_s` returns when each
/// node has the parameters that the first one has at begin_s. `merged_s` returns when the first
/// node has the total of the sums that the nodes have at ready_s. One addition takes add_s.
std::vector<double> published_s(MergeOrder order, const comm::Link& link, double bytes,
                                size_t nodes, double begin_s);
double merged_s(MergeOrder order, const comm::Link& link, double bytes, double add_s,
                std::vector<double> ready_s);

/// Job that computes all rows in each iteration, in shards of `grain` rows.
struct SimJob {
  int64_t rows = 0, grain = 1, iterations = 1;
  double parameter_bytes = 0;  ///< bytes of the parameters, published to each node
  double partial_bytes = 0;    ///< bytes of the sum of a node
  double update_s = 0;         ///< time from the merged sum to the next parameters
};

struct SimOptions {
  SchedulerOptions scheduling = {};
  MergeOrder merge = MergeOrder::kTree;
  comm::Link network = {};  ///< link between nodes
  double merge_add_s = 0;   ///< time to add the sum of one node to another
  double restart_s = 10;    ///< time from the loss of a node to the next beginning of the iteration
  std::vector<SimFault> faults = {};
  uint64_t seed = 0;
  SimNodeRun::Observer observer = {};
};

struct SimIteration {
  /// Times of the last attempt: its beginning, the last node has its sum, the parameters are
  /// updated.
  double begin_s = 0, computed_s = 0, end_s = 0;
  int64_t attempts = 1;       ///< 1, plus 1 for each loss of nodes
  std::vector<int64_t> rows;  ///< rows that each node computed
};

struct SimResult {
  double seconds = 0;
  std::vector<SimIteration> iterations;
  std::vector<std::vector<SimDeviceUse>> devices;  ///< by node
  std::vector<std::string> lost;  ///< by node: reason why it was left out; empty if it was not
  int64_t events = 0;
};

/// Simulates a job on a cluster in virtual time: devices compute nothing and only take their time.
/// The shares of nodes follow `partition` of their measured times, as in jobs/scheduler.h for
/// devices. They are equal while a speed is unknown, and kept while moving them would gain less
/// than the hysteresis. Within a node, the Scheduler of real executors drives the simulated
/// devices.
///
/// An iteration sends the parameters to the nodes. Each node computes its own range of shards and
/// adds its partials. The sums are merged, and the first node updates the parameters. If a node
/// loses all its devices, the others finish what they compute. The iteration then begins again
/// after restart_s, without that node. Each shard counts exactly once in the last attempt of an
/// iteration.
///
/// The same seed gives the same result and the same events. Throws UserError if no node is left or
/// the nodes hold fewer rows than the job has.
SimResult simulate(const std::vector<SimNode>& nodes, const SimJob& job,
                   const SimOptions& options = {});

/// Returns a lower bound of the time of any schedule: the job's rows over the summed speed of all
/// slots. Starts, merging and noise are left out.
double least_seconds(const std::vector<SimNode>& nodes, const SimJob& job);

}  // namespace dovetail::jobs
