#include "dovetail/train/recommender/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "dovetail/base/error.h"

namespace dovetail::train::recommender_tuning_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Returns a run with 1000 samples per rank. A sample's activations take 10 bytes, everything else
/// 5000.
ResolvedRun run_with(uint64_t available_bytes) {
  ResolvedRun run;
  run.config.recommender.grain = 64;
  run.config.train.micro_batch = TrainSection::kAuto;
  run.micro_batch = 64;
  run.maximum_samples = 1000;
  run.memory.weights = 5000;
  run.memory.activations = 640;
  run.available_bytes = available_bytes;
  return run;
}

/// Estimate for tensors of `bytes`, with the freed blocks that are kept.
constexpr uint64_t with_kept(uint64_t bytes) { return bytes + bytes / 16; }

std::vector<int64_t> micro_batches(const std::vector<TableSizes>& candidates) {
  std::vector<int64_t> found;
  found.reserve(candidates.size());
  for (const TableSizes& sizes : candidates) found.push_back(sizes.micro_batch);
  return found;
}

TEST(RecommenderTuning, TriesPartsOfTheBatchInWholeGrainsThatFit) {
  EXPECT_THAT(micro_batches(candidate_sizes(run_with(1000000), 10)),
              ElementsAre(1000, 512, 256, 128));
  EXPECT_THAT(micro_batches(candidate_sizes(run_with(with_kept(5000 + 2560)), 10)),
              ElementsAre(256, 128));
  EXPECT_THAT(micro_batches(candidate_sizes(run_with(with_kept(5000 + 640)), 10)), ElementsAre(64));
  EXPECT_THAT(micro_batches(candidate_sizes(run_with(10), 10)), ElementsAre(64));
  ResolvedRun shared = run_with(2 * with_kept(5000 + 2560));
  shared.local_ranks = 2;
  EXPECT_THAT(micro_batches(candidate_sizes(shared, 10)), ElementsAre(256, 128));
}

TEST(RecommenderTuning, TriesAsManyGroupsAsThereAreTablesFor) {
  ResolvedRun run = run_with(1000000);
  run.config.train.micro_batch = run.micro_batch = 128;
  run.config.embedding.groups = EmbeddingSection::kAuto;
  run.config.embedding.memory_bytes = 77;
  using Sizes = std::vector<TableSizes>;
  EXPECT_EQ(candidate_sizes(run, 3), (Sizes{{1, 128, 77}, {2, 128, 77}}));
  EXPECT_EQ(candidate_sizes(run, 26), (Sizes{{1, 128, 77}, {2, 128, 77}, {4, 128, 77}}));
  run.config.embedding.groups = 3;
  EXPECT_EQ(candidate_sizes(run, 26), (Sizes{{3, 128, 77}}));
}

TEST(RecommenderTuning, MeasuresInRoundsAndLeavesOutWhatIsFarBehind) {
  const std::vector<TableSizes> candidates = {{1, 8}, {1, 4}, {2, 8}, {2, 4}};
  std::map<std::pair<int64_t, int64_t>, std::vector<double>> times = {
      {{1, 8}, {1.1, 1.0, 1.2}}, {{1, 4}, {1.3}}, {{2, 8}, {1.3}}, {{2, 4}, {1.15, 1.12, 0.9}}};
  std::vector<int64_t> order;
  const std::vector<double> step_s = measure_steps(candidates, [&](const TableSizes& sizes) {
    order.push_back(10 * sizes.groups + sizes.micro_batch);
    std::vector<double>& left = times.at({sizes.groups, sizes.micro_batch});
    const double now = left.front();
    left.erase(left.begin());
    return now;
  });
  EXPECT_THAT(order, ElementsAre(18, 14, 18, 18, 28, 24, 24, 24));
  EXPECT_THAT(step_s, ElementsAre(1.0, 1.3, 1.3, 0.9));
}

TEST(RecommenderTuning, TakesTheSimplestOfTheFastest) {
  EXPECT_EQ(simplest_of_fastest({1.0, 0.98, 0.975}), 0);
  EXPECT_EQ(simplest_of_fastest({1.0, 0.96, 0.95}), 1);
  EXPECT_EQ(simplest_of_fastest({2.0, 1.5, 1.0}), 2);
}

TEST(RecommenderTuning, GivesRowsTheMemoryThatIsLeft) {
  EXPECT_EQ(memory_for_rows(1000, 300, 600), 0);
  EXPECT_EQ(memory_for_rows(1000, 300, 601), 600);
  EXPECT_THAT([] { memory_for_rows(1000, 900, 1); },
              ::testing::ThrowsMessage<UserError>(HasSubstr("embedding.memory_bytes = \"auto\"")));
}

TEST(RecommenderTuning, CountsRowsAndStateOfTheFullestRank) {
  const embedding::PackSpec spec = {
      .tables = {{.name = "a", .rows = 10, .dim = 4}, {.name = "b", .rows = 3, .dim = 8}},
      .feature_table = {0, 1},
      .optimizer = {.kind = embedding::OptimizerKind::kRowWiseAdagrad}};
  const embedding::TablePlacement plan =
      embedding::place_tables(spec, {.ranks = 2, .sharding = embedding::Sharding::kRowWise});
  EXPECT_EQ(maximum_table_bytes(spec, plan), 4 * (5 * (4 + 1) + 2 * (8 + 1)));
}

}  // namespace
}  // namespace dovetail::train::recommender_tuning_test
