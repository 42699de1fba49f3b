#include "dovetail/moe/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "../comm/clusters.h"
#include "../comm/ranks.h"
#include "dovetail/base/error.h"

namespace dovetail::moe::simulate_test {
namespace {

comm::CostModel cluster() { return two_classes(4); }

LayerLoad even_load(int ranks, int experts) {
  return {.ranks = ranks,
          .experts = experts,
          .tokens = 1024,
          .width = 512,
          .hidden = 1024,
          .top_k = 2,
          .row_bytes = 1024,
          .other_row_bytes = 1024,
          .parameter_bytes = 2,
          .once_per_rank = false};
}

/// Without skew and overlap nothing waits: exchanges and products follow each other, each by its
/// formula.
TEST(Simulate, AnEvenLoadWithoutOverlapIsTheSumOfItsParts) {
  for (const int ranks : {4, 8, 64})
    for (const auto algorithm :
         {comm::AllToAllAlgorithm::kLinear, comm::AllToAllAlgorithm::kHierarchical,
          comm::AllToAllAlgorithm::kFlexible, comm::AllToAllAlgorithm::kHierarchicalFlexible}) {
      const auto load = even_load(ranks, 2 * ranks);
      const double rows = 1024.0 * 2, pieces = comm::is_flexible(algorithm) ? 1 : ranks;
      const double exchange =
          comm::all_to_all_seconds(cluster(), ranks, rows / ranks * 1024, algorithm);
      const double compute = 2 * 2 * pieces * 1e-6 + rows * 4 * 512 * 1024 / 1e13;
      const auto time = simulate(cluster(), load, {.algorithm = algorithm});
      EXPECT_NEAR(time.forward_s, 2 * exchange + compute, 1e-9);
      EXPECT_NEAR(time.backward_s, 2 * exchange + 2 * compute, 1e-9);
      EXPECT_NEAR(time.compute_s, 3 * compute, 1e-9);
    }
}

TEST(Simulate, DataParallelMovesExpertsAndNoRows) {
  const auto load = even_load(8, 4);
  const double compute = 4 * 2 * 1e-6 + 2048.0 * 4 * 512 * 1024 / 1e13;
  const double gather = 7 * 1e-5 + 4 * (2.0 * 512 * 1024 * 2) * 7 / 8 / 1e10;
  const auto time = simulate(cluster(), load, {.shards = 0});
  EXPECT_NEAR(time.forward_s, gather + compute, 1e-9);
  EXPECT_NEAR(time.backward_s, 2 * gather + 2 * compute, 1e-9);  // gathers, then scatters
}

/// 16 experts on 4 ranks, 3 different experts for each token. The share of tokens with an expert on
/// a rank is 1 - C(12, 3) / C(16, 3). Each choice adds a weight and an index of 4 bytes, and
/// backward a gradient of 4.
TEST(Simulate, ATokenTravelsOnceToEachRank) {
  auto model = cluster();
  model.call_s = model.inside.latency_s = 0;
  model.flops = 1e30;
  auto load = even_load(4, 16);
  load.top_k = 3;
  load.once_per_rank = true;
  const double rows = 1024 * (1 - 220.0 / 560.0), choices = 1024 * 3 / 4.0;
  const auto seconds = [&](double bytes) { return 3 * bytes / model.inside.bytes_per_s; };
  const auto time = simulate(model, load, {});
  EXPECT_NEAR(time.forward_s, seconds(2 * rows * 1024 + 8 * choices), 1e-12);
  EXPECT_NEAR(time.backward_s, seconds(2 * rows * 1024 + 4 * choices), 1e-12);
  load.capacity = 100;  // padded: four experts' places travel, whatever the choices
  EXPECT_NEAR(simulate(model, load, {}).forward_s, seconds(2 * 4 * 100 * 1024), 1e-12);
}

/// The owner of two shadowed experts sends both to each other rank of its node.
TEST(Simulate, ShadowedExpertsTravelFromTheirOwner) {
  auto model = cluster();
  model.inside.latency_s = 0;
  auto load = even_load(4, 8);
  load.skew = 4;  // experts 0 and 1 have the most choices, and share a rank
  const double expert = 2.0 * 512 * 1024 * 2;
  const auto time = [&](double rate) {
    auto one = model;
    one.inside.bytes_per_s = rate;
    return simulate(one, load, {.shadowed = 2}).forward_s;
  };
  // Per byte and second of the link: rows add little, since the skew leaves few of them.
  const double of_links = (time(1e9) - time(2e9)) / (1 / 1e9 - 1 / 2e9);
  EXPECT_NEAR(of_links, 3 * 2 * expert, 0.05 * 3 * 2 * expert);
}

/// Two ranks have three and one parts of the work. If they share a core, each computes at half
/// speed until the second is done. With a core each, the first needs the time of its three parts.
TEST(Simulate, RanksThatAreDoneLeaveTheirCores) {
  auto model = cluster();
  model.call_s = 0;
  auto load = even_load(2, 2);
  load.choices_of = {3, 1};
  const double all = 2 * 2048.0 * 4 * 512 * 1024 / model.flops;  // seconds of both ranks
  EXPECT_NEAR(simulate(model, load, {}).compute_s, 3 * 0.75 * all, 1e-9);
  model.flops_alone = 2 * model.flops;
  EXPECT_NEAR(simulate(model, load, {}).compute_s, 3 * all / 2, 1e-9);
}

/// Each rank has one expert. Each further chunk adds the gradients of an expert in backward.
TEST(Simulate, AChunkAddsTheGradientsOfTheExpertsOnceMore) {
  auto model = cluster();
  model.call_s = model.inside.latency_s = model.between->latency_s = 0;
  model.overlap_share = 0;
  const auto load = even_load(8, 8);
  const auto seconds = [&](int overlap) {
    return simulate(model, load, {.overlap = overlap}).backward_s;
  };
  EXPECT_NEAR(seconds(3) - seconds(1), 2 * (2.0 * 512 * 1024 * 2) / model.copy_bytes_per_s, 1e-9);
}

TEST(Simulate, MeasuredCollectivesReplaceTheLinks) {
  auto model = cluster();
  const auto load = even_load(8, 4);
  const auto plan = LayerPlan{.shards = 0};
  const double compute = simulate(model, load, plan).compute_s / 3;
  model.gather = comm::Link{.latency_s = 0, .bytes_per_s = 1e9};
  model.reduce = comm::Link{.latency_s = 0, .bytes_per_s = 5e8};
  const double bytes = 4 * (2.0 * 512 * 1024 * 2) * 7 / 8;
  EXPECT_NEAR(simulate(model, load, plan).forward_s, bytes / 1e9 + compute, 1e-9);
  EXPECT_NEAR(simulate(model, load, plan).backward_s, bytes / 1e9 + bytes / 5e8 + 2 * compute,
              1e-9);
}

TEST(Simulate, HidesTheShareThatTheMachineHides) {
  auto model = cluster();
  const auto load = even_load(8, 8);
  const auto seconds = [&](double share) {
    model.overlap_share = share;
    return simulate(model, load, {.overlap = 4}).forward_s;
  };
  const double all = seconds(1), none = seconds(0);
  EXPECT_LT(all, none);
  EXPECT_NEAR(seconds(0.25), none - 0.25 * (none - all), 1e-12);
  // If nothing is hidden, chunks only add latency.
  EXPECT_GT(none, simulate(model, load, {.overlap = 1}).forward_s);
}

/// Twice the shards send twice the rows. No experts are gathered when every rank of an expert is a
/// shard.
TEST(Simulate, ShardsTradeExpertsForRows) {
  auto load = even_load(8, 2);
  const auto seconds = [&](int shards) {
    return simulate(cluster(), load, {.shards = shards}).forward_s;
  };
  load.hidden = 1 << 16;  // large experts: sending rows is cheaper
  load.tokens = 64;
  EXPECT_LT(seconds(4), seconds(1));
  load.hidden = 64;  // small experts: sending experts is cheaper
  load.tokens = 1 << 14;
  EXPECT_GT(seconds(4), seconds(1));
}

TEST(Simulate, OverlapHidesTheShorterOfTheTwoStreams) {
  auto model = cluster();
  model.call_s = model.inside.latency_s = model.between->latency_s = 0;  // chunks cost nothing
  const auto load = even_load(8, 8);
  const auto serial = simulate(model, load, {.overlap = 1}),
             chunked = simulate(model, load, {.overlap = 8});
  const double compute = serial.compute_s / 3, exchange = serial.forward_s - compute;
  EXPECT_LT(chunked.forward_s, serial.forward_s);
  EXPECT_GE(chunked.forward_s, std::max(compute, exchange));
  EXPECT_NEAR(chunked.forward_s, std::max(compute, exchange) + std::min(compute, exchange) / 8,
              0.15 * serial.forward_s);
  // With latency one degree of overlap is the best, and higher ones are worse.
  model.between->latency_s = 1e-3;
  EXPECT_GT(simulate(model, load, {.overlap = 8}).forward_s,
            simulate(model, load, {.overlap = 1}).forward_s);
}

TEST(Simulate, SkewWaitsForTheHottestExpertAndShadowingHelps) {
  auto load = even_load(16, 16);
  load.hidden = 64;  // experts cheap to send
  load.tokens = 8192;
  const double even = simulate(cluster(), load, {}).total_s();
  load.skew = 1.0;
  const auto skewed = simulate(cluster(), load, {}),
             shadowed = simulate(cluster(), load, {.shadowed = 1});
  EXPECT_GT(skewed.total_s(), 1.5 * even);
  EXPECT_LT(shadowed.total_s(), skewed.total_s());
  // The busiest rank's rows are the first expert's share of all.
  double sum = 0;
  for (int e = 1; e <= 16; ++e) sum += 1.0 / e;
  const double rows = 16 * 8192.0 * 2 / sum;
  EXPECT_NEAR(skewed.compute_s, 3 * (2 * 16 * 1e-6 + rows * 4 * 512 * 64 / 1e13), 1e-9);
}

/// With free computation the hottest expert's rank is the bound. It receives from all others, then
/// sends equally much back.
TEST(Simulate, TheHottestRanksLinkBoundsASkewedExchange) {
  auto model = cluster();
  model.call_s = model.inside.latency_s = 0;
  model.flops = 1e30;
  auto load = even_load(4, 4);
  load.skew = 1.0;
  const double hottest = 2048.0 / (1 + 1 / 2.0 + 1 / 3.0 + 1 / 4.0) * 1024;
  EXPECT_NEAR(simulate(model, load, {}).forward_s, 2 * 3 * hottest / model.inside.bytes_per_s,
              1e-12);
}

TEST(Simulate, ChoosesTheFastestOfAllPlansAlsoWith4096Ranks) {
  const auto times = simulate_all(cluster(), even_load(64, 16), 2);
  // Data parallel, and 4 algorithms x 8 degrees x r of 1, 2, 4 x 0, 1, 2 shadowed experts.
  EXPECT_EQ(times.size(), 1U + 4 * 8 * 3 * 3);
  for (size_t i = 1; i < times.size(); ++i) EXPECT_LE(times[i - 1].total_s(), times[i].total_s());
  const auto large = simulate(cluster(), even_load(4096, 4096),
                              {.algorithm = comm::AllToAllAlgorithm::kHierarchical});
  EXPECT_TRUE(std::isfinite(large.total_s()));
  EXPECT_LT(large.total_s(), simulate(cluster(), even_load(4096, 4096), {}).total_s());
}

TEST(Simulate, WhatDoesNotFitIsRefused) {
  EXPECT_THROW(simulate(cluster(), even_load(8, 3), {}), UserError);
  EXPECT_THROW(simulate(cluster(), even_load(6, 6), {}), UserError);  // nodes of 4
  EXPECT_THROW(simulate(cluster(), even_load(8, 8), {.overlap = 9}), UserError);
  EXPECT_THROW(simulate(cluster(), even_load(8, 2), {.shards = 3}), UserError);
  EXPECT_THROW(simulate(cluster(), even_load(8, 8), {.shadowed = 8}), UserError);
  auto one_node = cluster();
  one_node.between.reset();
  EXPECT_THROW(simulate(one_node, even_load(8, 8), {}), UserError);
}

TEST(Simulate, TheLayerThatIsMeasuredRuns) {
  expect_all_succeed(2, [&](std::shared_ptr<comm::Group> group) {
    const LayerLoad load{
        .ranks = 2, .experts = 2, .tokens = 64, .width = 16, .hidden = 32, .top_k = 2};
    for (const int overlap : {1, 2, 4}) EXPECT_GT(measure_forward(group, load, overlap, 3), 0);
    EXPECT_THROW(measure_forward(group, load, 3, 1), UserError);
    group->barrier();
  });
}

}  // namespace
}  // namespace dovetail::moe::simulate_test
