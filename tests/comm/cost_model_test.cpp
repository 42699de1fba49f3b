#include "dovetail/comm/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "clusters.h"
#include "dovetail/base/error.h"
#include "ranks.h"

namespace dovetail::comm::cost_model_test {
namespace {

using ::testing::HasSubstr;

/// Adds up the messages of rank 0 one by one.
double by_messages(const CostModel& model, int ranks, double bytes, bool hierarchical) {
  double seconds = 0;
  const int m = model.ranks_per_node;
  if (!hierarchical) {
    for (int peer = 1; peer < ranks; ++peer)
      seconds += (peer < m ? model.inside : *model.between).seconds(1, bytes);
    return seconds;
  }
  for (int copy = 0; copy < 2; ++copy)
    for (int piece = 0; piece < ranks; ++piece) seconds += bytes / model.copy_bytes_per_s;
  for (int peer = 1; peer < m; ++peer) seconds += model.inside.seconds(1, bytes * (ranks / m));
  for (int node = 1; node < ranks / m; ++node) seconds += model.between->seconds(1, bytes * m);
  return seconds;
}

TEST(CostModel, AddsUpTheMessagesOfARank) {
  for (const int node : {1, 2, 8})
    for (const int ranks : {8, 16, 64})
      for (const double bytes : {0.0, 1e3, 1e6}) {
        const auto model = two_classes(node);
        EXPECT_NEAR(all_to_all_seconds(model, ranks, bytes, AllToAllAlgorithm::kLinear),
                    by_messages(model, ranks, bytes, false), 1e-12);
        EXPECT_NEAR(all_to_all_seconds(model, ranks, bytes, AllToAllAlgorithm::kHierarchical),
                    by_messages(model, ranks, bytes, true), 1e-12);
        EXPECT_EQ(all_to_all_seconds(model, ranks, bytes, AllToAllAlgorithm::kHierarchicalFlexible),
                  all_to_all_seconds(model, ranks, bytes, AllToAllAlgorithm::kHierarchical));
      }
  EXPECT_EQ(all_to_all_seconds(two_classes(8), 1, 1e6, AllToAllAlgorithm::kLinear), 0);
}

/// Tutel's reason for 2DH: many small messages between nodes.
TEST(CostModel, HierarchicalWinsWithManyRanksAndLosesWithLargeMessages) {
  const auto model = two_classes(8);
  const auto ratio = [&](int ranks, double bytes) {
    return all_to_all_seconds(model, ranks, bytes, AllToAllAlgorithm::kHierarchical) /
           all_to_all_seconds(model, ranks, bytes, AllToAllAlgorithm::kLinear);
  };
  EXPECT_LT(ratio(1024, 1e3), 0.5);
  EXPECT_GT(ratio(16, 1e7), 1.0);
}

TEST(CostModel, FitFindsTheLinkThatMadeTheSamples) {
  const Link link{.latency_s = 3e-4, .bytes_per_s = 7e8};
  std::vector<LinkSample> samples;
  for (const double messages : {1.0, 3.0})
    for (const double bytes : {1e2, 1e4, 1e6, 1e7})
      samples.push_back({messages, messages * bytes, link.seconds(messages, messages * bytes)});
  const auto fitted = fit_link(samples);
  EXPECT_NEAR(fitted.latency_s / link.latency_s, 1, 1e-9);
  EXPECT_NEAR(fitted.bytes_per_s / link.bytes_per_s, 1, 1e-9);
  EXPECT_THROW(fit_link({{1, 10, 1}, {2, 20, 2}}), InternalError);
  // Neither figure below zero, whatever was measured.
  const auto falling = fit_link({{1, 1e3, 2e-3}, {1, 1e6, 1e-3}});
  EXPECT_GE(falling.latency_s, 0);
  EXPECT_GT(falling.bytes_per_s, 0);
}

TEST(CostModel, FilesAreReadAndMistakesNamed) {
  const auto json = nlohmann::json::parse(to_json(two_classes(8)).dump());
  EXPECT_EQ(to_json(parse_cost_model(json, "file")).dump(), to_json(two_classes(8)).dump());
  const auto message = [&](const nlohmann::json& patch) -> std::string {
    auto changed = json;
    changed.merge_patch(patch);
    try {
      parse_cost_model(changed, "c.json");
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message({{"inside", nullptr}}), HasSubstr("c.json: inside is missing"));
  EXPECT_THAT(message({{"latency", 1}}), HasSubstr("unknown key latency"));
  EXPECT_THAT(message({{"between", {{"latency_s", -1}}}}), HasSubstr("between: latency_s is -1"));
  EXPECT_THAT(message({{"flops", "many"}}), HasSubstr("flops is \"many\", not a number"));
  EXPECT_THAT(message({{"ranks_per_node", 1.5}}), HasSubstr("ranks_per_node is 1.5"));
  EXPECT_THAT(message({{"source", nullptr}}), HasSubstr("source is missing"));
  EXPECT_EQ(message({{"between", nullptr}}), "");

  auto one_node = two_classes(4);
  one_node.between.reset();
  EXPECT_THROW(all_to_all_seconds(one_node, 8, 1, AllToAllAlgorithm::kLinear), UserError);
  EXPECT_THROW(all_to_all_seconds(two_classes(4), 6, 1, AllToAllAlgorithm::kLinear), UserError);
}

TEST(Calibration, IsTheSameOnEveryRankAndNearWhatItMeasured) {
  std::vector<std::string> models(2);
  expect_all_succeed(2, [&](std::shared_ptr<Group> world) {
    const auto calibration = calibrate(*world, 2);
    models[static_cast<size_t>(world->rank())] = to_json(calibration.model).dump();
    ASSERT_EQ(calibration.held_out.size(), 4U);
    if (world->rank() != 0) return;
    for (const auto& sample : calibration.held_out) {
      const double predicted = all_to_all_seconds(
          calibration.model, 2, sample.bytes / sample.messages, AllToAllAlgorithm::kLinear);
      // Threads of one busy process: only the order of magnitude is sure. `bench comm` prints the
      // figures.
      EXPECT_GT(predicted / sample.seconds, 0.1) << sample.bytes;
      EXPECT_LT(predicted / sample.seconds, 10) << sample.bytes;
    }
  });
  EXPECT_EQ(models[0], models[1]);
}

}  // namespace
}  // namespace dovetail::comm::cost_model_test
