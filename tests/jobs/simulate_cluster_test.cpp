// Laws of a simulated job. No schedule is faster than all devices together. Without noise its time
// equals the partition's time. Shards count once whatever fails. Nodes without links scale ideally.
// A seed gives one trace.
#include "dovetail/jobs/simulate/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "dovetail/base/error.h"
#include "dovetail/jobs/partition.h"

namespace dovetail::jobs::simulate_cluster_test {
namespace {

const comm::Link kNoCost{.latency_s = 0, .bytes_per_s = std::numeric_limits<double>::infinity()};

SimDevice device(double row_s, int64_t slots = 1, double start_s = 0) {
  return {.name = fmt::format("device of {} s a row", row_s),
          .slots = slots,
          .speed = {start_s, row_s}};
}

/// Node of 16 cores. Each GPU binds one core and is as fast as 14 cores.
SimNode node_of(int64_t gpus, bool cores_compute = true) {
  return make_sim_node({.cores = 16,
                        .gpus = gpus,
                        .cores_compute = cores_compute,
                        .core = device(1.4e-4),
                        .gpu = device(1e-5)});
}

int64_t rows_of(const SimResult& result) {
  int64_t rows = 0;
  for (const auto& devices : result.devices)
    for (const SimDeviceUse& use : devices) rows += use.rows;
  return rows;
}

TEST(SimCluster, IsNeverFasterThanAllDevicesTogether) {
  std::mt19937 random(3);
  const auto below = [&random](uint64_t n) { return static_cast<int64_t>(random() % n); };
  for (int i = 0; i < 300; ++i) {
    std::vector<SimNode> nodes(static_cast<size_t>(1 + below(5)));
    for (SimNode& node : nodes) {
      for (int64_t d = 0, n = 1 + below(3); d < n; ++d)
        node.devices.push_back(device(1e-6 * static_cast<double>(1 + below(20)), 1 + below(4),
                                      1e-4 * static_cast<double>(below(2))));
      node.add_s = 1e-5 * static_cast<double>(below(2));
    }
    const SimJob job{.rows = 1 + below(100000),
                     .grain = 1 + below(2000),
                     .iterations = 1 + below(4),
                     .parameter_bytes = 1e4,
                     .partial_bytes = 1e4};
    SimOptions options{.merge = static_cast<MergeOrder>(below(2)),
                       .network = i % 2 == 0 ? kNoCost : comm::Link{1e-4, 1e8}};
    options.scheduling.policy = static_cast<SharePolicy>(i % 3);
    options.faults = {{.kind = SimFault::Kind::kSlow, .at_s = 0.01, .for_s = 0.02, .factor = 3}};
    const SimResult result = simulate(nodes, job, options);
    EXPECT_GE(result.seconds, minimum_seconds(nodes, job) * (1 - 1e-12)) << i;
    EXPECT_EQ(rows_of(result), job.rows * job.iterations) << i;
  }
}

TEST(SimCluster, WithoutNoiseTakesTheTimeOfTheBestPartition) {
  const std::vector<std::vector<double>> nodes = {
      {1e-5}, {1e-5, 3e-5}, {1e-5, 2e-5, 7e-5}, {2e-5, 1.4e-4, 1e-6}};
  for (const auto& speeds : nodes) {
    SimNode node;
    std::vector<DeviceCost> costs;
    for (const double row_s : speeds) {
      node.devices.push_back(device(row_s));
      costs.push_back({.row_s = row_s});
    }
    const SimJob job{.rows = 100000, .grain = 250, .iterations = 3};
    for (const SharePolicy policy : {SharePolicy::kAffine, SharePolicy::kStealing}) {
      SimOptions options;
      options.scheduling.policy = policy;
      const SimResult result = simulate({node}, job, options);
      const double best = partition(job.rows, costs, job.grain).seconds;
      // The first iteration learns speeds; the others end with the best partition.
      const SimIteration& last = result.iterations.back();
      EXPECT_NEAR(last.end_s - last.begin_s, best, 1e-9 * best) << speeds.size();
    }
  }
}

TEST(SimCluster, StartsAndTheDriverAreInTheTime) {
  SimNode node{.devices = {device(1e-5, 1, 5e-3)}, .driver_s = 0.25, .add_s = 1e-2};
  SimOptions options;
  options.scheduling.policy = SharePolicy::kStatic;
  const SimJob job{.rows = 1000, .grain = 1000, .iterations = 1, .update_s = 0.5};
  // One lease of one shard: driver, start, rows, one addition, update.
  EXPECT_DOUBLE_EQ(simulate({node}, job, options).seconds, 0.25 + 5e-3 + 1e-2 + 1e-2 + 0.5);
  EXPECT_DOUBLE_EQ(minimum_seconds({node}, job), 1e-2);
}

TEST(SimCluster, CountsEachShardOnceWhateverFails) {
  std::mt19937 random(7);
  int64_t throws = 0, lost = 0, left_out = 0;
  for (int i = 0; i < 200; ++i) {
    const std::vector<SimNode> nodes(static_cast<size_t>(1 + random() % 3),
                                     node_of(static_cast<int64_t>(random() % 3)));
    SimOptions options{.network = kNoCost, .seed = static_cast<uint64_t>(i)};
    options.scheduling = {.min_lease_s = 0.01, .first_lease_s = 0.5, .max_attempts = 100};
    options.scheduling.verify_every = nodes[0].devices.size() > 1 && i % 4 == 0 ? 5 : 0;
    for (size_t n = 0; n < nodes.size(); ++n)
      for (size_t d = 0; d < nodes[n].devices.size(); ++d) {
        if (n == 0 && d == 0) continue;  // one device stays until the end
        options.faults.push_back(
            {.node = n,
             .device = d,
             .kind = static_cast<SimFault::Kind>(random() % 3),
             .at_s = 0.001 * static_cast<double>(random() % 400),
             .for_s = random() % 2 == 0 ? std::numeric_limits<double>::infinity() : 0.05,
             .factor = 20});
      }
    int64_t count_events = 0;
    options.observer = [&](const SimEvent& event) {
      throws += event.what == SimEvent::What::kThrow;
      count_events += event.what == SimEvent::What::kCount;
    };
    const SimJob job{.rows = 40000, .grain = 250, .iterations = 3};
    const SimResult result = simulate(nodes, job, options);
    int64_t attempts = 0;
    for (const SimIteration& iteration : result.iterations) {
      attempts += iteration.attempts;
      EXPECT_EQ(std::accumulate(iteration.rows.begin(), iteration.rows.end(), int64_t{0}),
                job.rows);
    }
    if (attempts == job.iterations) {
      EXPECT_EQ(count_events, 160 * job.iterations) << i;
      EXPECT_EQ(rows_of(result), job.rows * job.iterations) << i;
    } else {
      EXPECT_GT(count_events, 160 * job.iterations) << i;
    }
    lost += std::ranges::count_if(result.lost,
                                  [](const std::string& reason) { return !reason.empty(); });
    for (const auto& devices : result.devices)
      left_out += std::ranges::count_if(
          devices, [](const SimDeviceUse& use) { return !use.left_out.empty(); });
  }
  EXPECT_GT(throws, 100);
  EXPECT_GT(lost, 10);
  EXPECT_GT(left_out, 20);
}

TEST(SimCluster, FaultsTakeTheirTime) {
  const SimJob job{.rows = 1000, .grain = 1000, .iterations = 1};
  const std::vector<SimNode> nodes = {{.devices = {device(1e-3)}}};
  SimOptions options;
  const auto seconds = [&](SimFault fault) {
    options.faults = {fault};
    return simulate(nodes, job, options).seconds;
  };
  EXPECT_DOUBLE_EQ(seconds({.kind = SimFault::Kind::kSlow, .at_s = 0.5, .factor = 3}),
                   0.5 + 3 * 0.5);
  EXPECT_DOUBLE_EQ(seconds({.kind = SimFault::Kind::kSlow, .at_s = 0.5, .for_s = 0.6, .factor = 3}),
                   0.5 + 0.6 + 0.3);
  EXPECT_DOUBLE_EQ(seconds({.kind = SimFault::Kind::kHang, .at_s = 0.5, .for_s = 2}), 3);
  // Results lost at 1 s are computed a second time.
  EXPECT_DOUBLE_EQ(seconds({.kind = SimFault::Kind::kThrow, .at_s = 0, .for_s = 1.5}), 2);
  EXPECT_THROW(seconds({.kind = SimFault::Kind::kThrow}), UserError);
  EXPECT_THROW(seconds({.kind = SimFault::Kind::kHang}), UserError);
}

TEST(SimCluster, ALostNodeIsLeftOutWithTheSchedulersReason) {
  const std::vector<SimNode> nodes(2, {.devices = {device(1e-5)}});
  SimOptions options{.network = kNoCost, .restart_s = 7};
  options.scheduling.first_lease_s = 2;
  options.faults = {{.node = 1, .kind = SimFault::Kind::kHang, .at_s = 0.1}};
  const SimJob job{.rows = 100000, .grain = 1000, .iterations = 2};
  const SimResult result = simulate(nodes, job, options);
  EXPECT_EQ(result.iterations[0].attempts, 2);
  EXPECT_EQ(result.iterations[1].rows, (std::vector<int64_t>{100000, 0}));
  EXPECT_THAT(result.lost[1], ::testing::HasSubstr("hybrid: no executor is left"));
  // The first node alone takes 1 s per iteration, after the silence was noticed and the job was
  // restarted.
  EXPECT_GT(result.seconds, 7 + 2 + 2);
  EXPECT_LT(result.seconds, 7 + 2 * 2 + 2.5);
}

TEST(SimCluster, MoreNodesWithoutLinkCostScaleIdeally) {
  const SimJob one{.rows = 160000, .grain = 100, .iterations = 4};
  const double alone = simulate({node_of(1)}, one, {.network = kNoCost}).seconds;
  for (const size_t nodes : {2U, 3U, 6U, 50U}) {
    const std::vector<SimNode> list(nodes, node_of(1));
    SimJob all = one;
    all.rows *= static_cast<int64_t>(nodes);
    for (const MergeOrder order : {MergeOrder::kTree, MergeOrder::kRanks})
      EXPECT_NEAR(simulate(list, all, {.merge = order, .network = kNoCost}).seconds, alone,
                  1e-9 * alone)
          << nodes;
  }
}

TEST(SimCluster, NodesOfUnequalSpeedGetSharesByTheirMeasuredSpeed) {
  const std::vector<SimNode> nodes = {{.devices = {device(1e-5)}}, {.devices = {device(3e-5)}}};
  const SimResult result =
      simulate(nodes, {.rows = 100000, .grain = 100, .iterations = 3}, {.network = kNoCost});
  EXPECT_EQ(result.iterations[0].rows, (std::vector<int64_t>{50000, 50000}));
  EXPECT_EQ(result.iterations[2].rows, (std::vector<int64_t>{75000, 25000}));
}

TEST(SimCluster, LinksTakeLatencyAndBytesInTheOrderThatWasAsked) {
  const comm::Link link{.latency_s = 1, .bytes_per_s = 10};  // 20 bytes: 3 s
  EXPECT_EQ(published_s(MergeOrder::kRanks, link, 20, 4, 5), (std::vector<double>{5, 8, 11, 14}));
  EXPECT_EQ(published_s(MergeOrder::kTree, link, 20, 4, 5), (std::vector<double>{5, 11, 8, 11}));
  EXPECT_EQ(published_s(MergeOrder::kTree, link, 20, 6, 0),
            (std::vector<double>{0, 9, 6, 9, 3, 6}));
  EXPECT_EQ(merged_s(MergeOrder::kRanks, link, 20, 0, {0, 0, 0, 0}), 9);
  EXPECT_EQ(merged_s(MergeOrder::kTree, link, 20, 0, {0, 0, 0, 0}), 6);
  EXPECT_EQ(merged_s(MergeOrder::kTree, link, 20, 0.5, {0, 0, 0, 0, 0}), 3 * 3.5);
  EXPECT_EQ(merged_s(MergeOrder::kRanks, link, 20, 0, {0, 0, 100, 0}), 106);
  EXPECT_EQ(merged_s(MergeOrder::kTree, link, 20, 0, {0, 0, 100, 0}), 106);
  for (const MergeOrder order : {MergeOrder::kTree, MergeOrder::kRanks}) {
    EXPECT_EQ(published_s(order, link, 20, 1, 5), std::vector<double>{5});
    EXPECT_EQ(merged_s(order, link, 20, 1, {5}), 5);
  }
}

TEST(SimCluster, EveryGpuBindsACore) {
  EXPECT_EQ(node_of(0).devices[0].slots, 16);
  EXPECT_EQ(node_of(2).devices[0].slots, 14);
  EXPECT_EQ(node_of(2).devices.size(), 3U);
  EXPECT_EQ(node_of(2, false).devices.size(), 2U);
  EXPECT_EQ(make_sim_node({.cores = 1, .gpus = 1, .gpu = device(1)}).devices.size(), 1U);
  EXPECT_THROW(make_sim_node({.cores = 1, .gpus = 2}), UserError);
  EXPECT_THROW(make_sim_node({.cores = 4, .gpus = 0, .cores_compute = false}), UserError);
}

TEST(SimCluster, ASeedHasOneTrace) {
  SimNode node = node_of(1);
  for (SimDevice& device : node.devices) device.noise = 0.2;
  const auto trace = [&](uint64_t seed) {
    std::vector<std::tuple<int, double, size_t, size_t, int64_t, int64_t>> events;
    SimOptions options{.network = {1e-4, 1e8}, .seed = seed};
    options.observer = [&](const SimEvent& e) {
      events.emplace_back(static_cast<int>(e.what), e.at_s, e.node, e.device, e.slot, e.shard);
    };
    simulate(std::vector<SimNode>(3, node), {.rows = 40000, .grain = 250, .iterations = 2},
             options);
    return events;
  };
  const auto first = trace(1);
  EXPECT_GE(first.size(), 2U * 160 * 2);  // deliveries and counts, and leases
  EXPECT_EQ(trace(1), first);
  EXPECT_NE(trace(2), first);
}

TEST(SimCluster, NoiseHasTheMeanAndTheDeviationThatWereAsked) {
  SimNode node{.devices = {device(1e-3)}};
  const SimJob job{.rows = 1000, .grain = 1000, .iterations = 1};
  for (const bool of_run : {false, true}) {
    node.devices[0].noise = of_run ? 0 : 0.3;
    node.devices[0].run_noise = of_run ? 0.3 : 0;
    double sum = 0, squares = 0;
    constexpr int kRuns = 4000;
    for (int seed = 0; seed < kRuns; ++seed) {
      const double s = simulate({node}, job, {.seed = static_cast<uint64_t>(seed)}).seconds;
      sum += s;
      squares += s * s;
    }
    const double mean = sum / kRuns;
    EXPECT_NEAR(mean, 1, 0.02);
    EXPECT_NEAR(std::sqrt(squares / kRuns - mean * mean), 0.3, 0.02);
  }
}

TEST(SimCluster, NamesMistakes) {
  EXPECT_THROW(parse_merge_order("star"), UserError);
  EXPECT_THROW(parse_fault_kind("flood"), UserError);
  SimNode small{.devices = {device(1)}};
  small.devices[0].max_rows = 10;
  EXPECT_THROW(simulate({small, small}, {.rows = 21, .grain = 1}), UserError);
  EXPECT_EQ(rows_of(simulate({small, small}, {.rows = 20, .grain = 1})), 20);
}

}  // namespace
}  // namespace dovetail::jobs::simulate_cluster_test
