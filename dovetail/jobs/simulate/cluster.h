#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "dovetail/comm/cost_model.h"
#include "dovetail/jobs/simulate/node.h"

namespace dovetail::jobs {

/// The order in which parameters go to the nodes, and sums come back to the first one.
enum class MergeOrder {
  kTree,  ///< binomial: ceil(log2 n) rounds; a node adds its neighbours at distance 1, 2, 4, ... in
          ///< this order
  kRanks,  ///< the first node serves the others one after another, in the order of their ranks
};
/// "tree", "ranks"; UserError for another name.
MergeOrder parse_merge_order(std::string_view name);

/// When each of the nodes has the parameters that the first one has at begin_s, and when the first
/// one has the sum of what they have ready at ready_s: at least one node.
std::vector<double> published_s(MergeOrder order, const Link& link, double bytes, size_t nodes,
                                double begin_s);
double merged_s(MergeOrder order, const Link& link, double bytes, double add_s,
                std::vector<double> ready_s);

/// A job: in each iteration all rows, in shards of `grain`.
struct SimJob {
  int64_t rows = 0, grain = 1, iterations = 1;
  double parameter_bytes = 0;  ///< published to each node
  double partial_bytes = 0;    ///< of a node's sum
  double update_s = 0;         ///< from the merged sum to the next parameters
};

struct SimOptions {
  SchedulerOptions scheduling = {};
  MergeOrder merge = MergeOrder::kTree;
  Link network = {};       ///< between nodes
  double merge_add_s = 0;  ///< to add a node's sum to another
  double restart_s = 10;   ///< from the loss of a node to the iteration's next begin
  std::vector<SimFault> faults = {};
  uint64_t seed = 0;
  SimNodeRun::Observer observer = {};
};

struct SimIteration {
  double begin_s = 0, computed_s = 0,
         end_s = 0;           ///< of its last attempt; the last node has its sum; updated
  int64_t attempts = 1;       ///< one more for each time that nodes were lost
  std::vector<int64_t> rows;  ///< of each node
};

struct SimResult {
  double seconds = 0;
  std::vector<SimIteration> iterations;
  std::vector<std::vector<SimDeviceUse>> devices;  ///< by node
  std::vector<std::string> lost;  ///< by node: why it was left out; empty: it was not
  int64_t events = 0;
};

/// A job on a cluster in virtual time: devices compute nothing and only take their time. Between
/// nodes shares follow `partition` of the nodes' measured times, as jobs/scheduler.h does between
/// the devices of a node: equal while a speed is unknown, and left alone while moving them would
/// gain less than the hysteresis. In a node the Scheduler that drives real executors drives these.
///
/// An iteration: parameters go to the nodes, each computes its own range of shards and adds its
/// partials, sums are merged, the first node updates. Where a node loses all its devices, the
/// others end what they compute, and after restart_s the iteration begins again without it. Each
/// shard counts exactly once in an iteration's last attempt.
///
/// The same result and the same events for the same seed. Throws UserError where nodes are lost
/// until none is left, or hold fewer rows than the job has.
SimResult simulate(const std::vector<SimNode>& nodes, const SimJob& job,
                   const SimOptions& options = {});

/// What no schedule can be faster than: the job's work over the speed of all slots of all devices
/// together, starts, merging and noise left out.
double least_seconds(const std::vector<SimNode>& nodes, const SimJob& job);

}  // namespace dovetail::jobs
