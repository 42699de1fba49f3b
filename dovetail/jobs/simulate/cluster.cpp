#include "dovetail/jobs/simulate/cluster.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <numeric>
#include <optional>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/enum_names.h"
#include "dovetail/jobs/partition.h"

namespace dovetail::jobs {
namespace {

/// State of a cluster during a job.
class ClusterRun {
 public:
  ClusterRun(const std::vector<SimNode>& nodes, const SimJob& job, const SimOptions& options)
      : nodes_(nodes),
        job_(job),
        options_(options),
        histories_(nodes.size()),
        shares_(nodes.size(), 0) {
    for (size_t i = 0; i < nodes.size(); ++i)
      runs_.emplace_back(i, nodes[i], options.faults, options.scheduling, options.seed,
                         options.observer);
    result_.lost.resize(nodes.size());
  }

  SimResult run() {
    for (int64_t i = 0; i < job_.iterations; ++i) {
      SimIteration iteration;
      while (!attempt(iteration)) ++iteration.attempts;
      result_.iterations.push_back(std::move(iteration));
    }
    result_.seconds = now_s_;
    for (const SimNodeRun& run : runs_) {
      result_.devices.push_back(run.uses());
      result_.events += run.events();
    }
    return std::move(result_);
  }

 private:
  std::vector<size_t> alive() const {
    std::vector<size_t> list;
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (result_.lost[i].empty()) list.push_back(i);
    return list;
  }

  /// Returns the cost of a node for `partition`, with the memory of all its devices. Before its
  /// speed is known, all nodes have the same speed.
  DeviceCost cost_of(size_t node, bool known) const {
    DeviceCost cost{.row_s = 1, .max_rows = 0};
    double ratio = 0;
    for (const SimDevice& device : nodes_[node].devices) {
      ratio += device.ratio;
      cost.max_rows = device.max_rows > std::numeric_limits<int64_t>::max() - cost.max_rows
                          ? std::numeric_limits<int64_t>::max()
                          : cost.max_rows + device.max_rows;
    }
    if (options_.scheduling.policy == SharePolicy::kStatic) {
      cost.row_s = 1 / ratio;
    } else if (known) {
      const Speed speed = *histories_[node].speed();
      cost.start_s = speed.start_s;
      cost.row_s = speed.row_s;
    }
    return cost;
  }

  /// Computes the shards of each node in `list`.
  void divide(const std::vector<size_t>& list) {
    const bool known = std::ranges::all_of(
        list, [this](size_t node) { return histories_[node].speed().has_value(); });
    std::vector<DeviceCost> costs;
    costs.reserve(list.size());
    std::vector<int64_t> before;
    before.reserve(list.size());
    for (const size_t node : list) {
      costs.push_back(cost_of(node, known));
      before.push_back(shares_[node]);
    }
    const std::vector<int64_t> moved =
        move_shares(before, job_.rows, costs, job_.grain, options_.scheduling.hysteresis);
    shares_.assign(nodes_.size(), 0);
    for (size_t i = 0; i < list.size(); ++i) shares_[list[i]] = moved[i];
  }

  /// Runs the iteration once. Returns false if nodes were lost.
  bool attempt(SimIteration& iteration) {
    const std::vector<size_t> list = alive();
    if (list.empty())
      throw UserError(fmt::format("hybrid: no node is left; {}", fmt::join(result_.lost, "; ")));
    divide(list);
    iteration.begin_s = now_s_;
    iteration.rows.assign(nodes_.size(), 0);
    const std::vector<double> begin_s =
        published_s(options_.merge, options_.network, job_.parameter_bytes, list.size(), now_s_);
    std::vector<double> ready_s = begin_s;
    int64_t shard = 0;
    bool lost = false;
    for (size_t i = 0; i < list.size(); ++i) {
      const size_t node = list[i];
      std::vector<int64_t> rows(static_cast<size_t>(shares_[node]), job_.grain);
      shard += shares_[node];
      if (!rows.empty() && shard * job_.grain > job_.rows)
        rows.back() -= shard * job_.grain - job_.rows;
      iteration.rows[node] = std::accumulate(rows.begin(), rows.end(), int64_t{0});
      if (!rows.empty()) ready_s[i] = compute(node, rows, begin_s[i]);
      lost = lost || !result_.lost[node].empty();
    }
    iteration.computed_s = *std::ranges::max_element(ready_s);
    if (lost) {
      now_s_ = iteration.computed_s + options_.restart_s;
      return false;
    }
    DOVETAIL_CHECK(
        std::accumulate(iteration.rows.begin(), iteration.rows.end(), int64_t{0}) == job_.rows,
        "shares of {} rows", job_.rows);
    now_s_ = job_.update_s + merged_s(options_.merge, options_.network, job_.partial_bytes,
                                      options_.merge_add_s, std::move(ready_s));
    iteration.end_s = now_s_;
    return true;
  }

  /// Returns when the node has its sum, or is lost.
  double compute(size_t node, const std::vector<int64_t>& rows, double begin_s) {
    try {
      const double end_s = runs_[node].iterate(rows, begin_s);
      histories_[node].add(std::accumulate(rows.begin(), rows.end(), int64_t{0}), end_s - begin_s);
      return end_s;
    } catch (const DevicesLost& error) {
      result_.lost[node] = fmt::format("node {}: {}", node, error.what());
      return runs_[node].now_s();
    }
  }

  const std::vector<SimNode>& nodes_;
  const SimJob& job_;
  const SimOptions& options_;
  std::deque<SimNodeRun> runs_;
  std::vector<SpeedHistory> histories_;  ///< times of whole nodes
  std::vector<int64_t> shares_;          ///< shards of each node
  double now_s_ = 0;
  SimResult result_;
};

}  // namespace

MergeOrder parse_merge_order(std::string_view name) {
  constexpr std::array<std::string_view, 2> kNames = {"tree", "ranks"};
  return parse_enum<MergeOrder>("hybrid", "order of merging", name, kNames);
}

std::vector<double> published_s(MergeOrder order, const comm::Link& link, double bytes,
                                size_t nodes, double begin_s) {
  std::vector<double> at_s(nodes, begin_s);
  const double message_s = link.seconds(1, bytes);
  if (order == MergeOrder::kRanks) {
    for (size_t i = 1; i < nodes; ++i) at_s[i] = begin_s + static_cast<double>(i) * message_s;
    return at_s;
  }
  // Time at which a node that has the parameters is free to send.
  std::vector<double> free_s = at_s;
  for (size_t step = std::bit_ceil(nodes) / 2; step > 0; step /= 2)
    for (size_t i = 0; i + step < nodes; i += 2 * step)
      free_s[i] = free_s[i + step] = at_s[i + step] = free_s[i] + message_s;
  return at_s;
}

double merged_s(MergeOrder order, const comm::Link& link, double bytes, double add_s,
                std::vector<double> ready_s) {
  const double message_s = link.seconds(1, bytes) + add_s;
  const size_t nodes = ready_s.size();
  if (order == MergeOrder::kRanks) {
    for (size_t i = 1; i < nodes; ++i) ready_s[0] = std::max(ready_s[0], ready_s[i]) + message_s;
    return ready_s[0];
  }
  for (size_t step = 1; step < nodes; step *= 2)
    for (size_t i = 0; i + step < nodes; i += 2 * step)
      ready_s[i] = std::max(ready_s[i], ready_s[i + step]) + message_s;
  return ready_s[0];
}

SimResult simulate(const std::vector<SimNode>& nodes, const SimJob& job,
                   const SimOptions& options) {
  DOVETAIL_CHECK(!nodes.empty() && job.rows > 0 && job.grain > 0 && job.iterations > 0,
                 "{} nodes, {} rows in grains of {}, {} iterations", nodes.size(), job.rows,
                 job.grain, job.iterations);
  for (const SimFault& fault : options.faults)
    DOVETAIL_CHECK(fault.node < nodes.size(), "a fault of node {} of {}", fault.node, nodes.size());
  return ClusterRun(nodes, job, options).run();
}

double minimum_seconds(const std::vector<SimNode>& nodes, const SimJob& job) {
  double rows_per_s = 0;
  for (const SimNode& node : nodes)
    for (const SimDevice& device : node.devices)
      rows_per_s += static_cast<double>(device.slots) / device.speed.row_s;
  return static_cast<double>(job.rows) * static_cast<double>(job.iterations) / rows_per_s;
}

double minimum_seconds_in_shards(const std::vector<SimNode>& nodes, const SimJob& job) {
  std::vector<DeviceCost> costs;
  for (const SimNode& node : nodes)
    for (const SimDevice& device : node.devices)
      costs.push_back(
          {.row_s = device.speed.row_s / static_cast<double>(device.slots), .slots = device.slots});
  return partition(job.rows, costs, job.grain).seconds * static_cast<double>(job.iterations);
}

}  // namespace dovetail::jobs
