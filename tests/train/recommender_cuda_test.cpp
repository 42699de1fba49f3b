// ctest-labels: cuda
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "dovetail/base/gpu.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/train/metrics/ranking_metrics.h"
#include "tests/comm/ranks.h"
#include "tests/train/clicks.h"
#include "tests/train/histories.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::recommender_cuda_test {
namespace {

using test::Clicks;
using test::expect_same_tensors;
using test::Histories;
using test::last_checkpoint;
using test::train_alone;
using ::testing::DoubleNear;
using ::testing::Pointwise;

struct Trained {
  std::vector<double> losses;
  double auc = 0;
};

/// Trains 40 steps on a device.
template <class Data>
Trained trained_on(const std::string& device, const Data& data, const std::string& model,
                   const std::string& row_dtype, const std::string& optimizer,
                   const std::string& recipe) {
  RunConfig config = data.config(model, device);
  config.precision.recipe = recipe;
  config.run.device = device;
  config.train.steps = 40;
  config.embedding.row_dtype = row_dtype;
  config.embedding.optimizer = optimizer;
  train_alone(config);
  Trained found;
  for (const auto& line : data.metrics(device)) found.losses.push_back(line["loss"]);
  found.auc = data.metrics(device).back()["auc"];
  return found;
}

template <class Data>
void expect_the_cpus(const std::string& model, const std::string& row_dtype = "fp32",
                     const std::string& optimizer = "rowwise_adagrad",
                     const std::string& recipe = "fp32") {
  SCOPED_TRACE(model + ", " + row_dtype + ", " + optimizer + ", " + recipe);
  const Data data;
  const Trained expected = trained_on("cpu", data, model, row_dtype, optimizer, recipe),
                found = trained_on("cuda", data, model, row_dtype, optimizer, recipe);
  EXPECT_EQ(expected.losses.size(), 40u);
  // A last bit of float32 can turn a rounding to bfloat16.
  const bool rounds = row_dtype == "bf16" || recipe == "bf16";
  EXPECT_THAT(found.losses, Pointwise(DoubleNear(rounds ? 1e-2 : 1e-4), expected.losses));
  EXPECT_NEAR(found.auc, expected.auc, 1e-2);
}

TEST(RecommenderCuda, EveryModelHasTheLossesOfTheCpu) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  for (const char* const model : {"wide_deep", "deepfm", "dlrm", "dcnv2", "mmoe"})
    expect_the_cpus<Clicks>(model);
  for (const char* const model : {"din", "dien", "can"}) expect_the_cpus<Histories>(model);
  for (const char* const optimizer : {"sgd", "momentum", "adagrad", "adam"})
    expect_the_cpus<Clicks>("dlrm", "fp32", optimizer);
  expect_the_cpus<Clicks>("dlrm", "bf16");
}

TEST(RecommenderCuda, EveryModelInBFloat16HasTheLossesOfTheCpu) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  for (const char* const model : {"wide_deep", "deepfm", "dlrm", "dcnv2", "mmoe"})
    expect_the_cpus<Clicks>(model, "fp32", "rowwise_adagrad", "bf16");
  for (const char* const model : {"din", "dien", "can"})
    expect_the_cpus<Histories>(model, "fp32", "rowwise_adagrad", "bf16");
}

/// Makes the tables of a run dynamic, with eviction.
void make_dynamic(RunConfig& config) {
  for (data::SparseConfig& feature : config.rows.sparse) {
    feature.max_rows = feature.num_rows;
    feature.num_rows = 0;
  }
  config.embedding.dynamic.eviction = "age";
  config.embedding.dynamic.evict_steps = 3;
  config.embedding.dynamic.max_age = 6;
}

/// Dynamic tables, tiers, and both. Without tiers, losses are the CPU's. With tiers, a run that
/// stops and continues has the bits of a run without them.
TEST(RecommenderCuda, TiersAndDynamicTablesHaveTheLossesOfTheCpu) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const Clicks data;
  for (const bool dynamic : {false, true}) {
    const auto config = [&](const std::string& name) {
      RunConfig config = data.config("deepfm", name + (dynamic ? "_dynamic" : ""));
      config.train.steps = 40;
      config.train.batch = 16;
      config.schedule.decay = "constant";
      if (dynamic) make_dynamic(config);
      return config;
    };
    const auto losses = [&](const RunConfig& config) {
      train_alone(config);
      std::vector<double> found;
      for (const auto& line : data.metrics(config.run.name)) found.push_back(line["loss"]);
      return found;
    };
    const std::vector<double> expected = losses(config("cpu"));
    RunConfig whole = config("gpu");
    whole.run.device = "cuda";
    EXPECT_THAT(losses(whole), Pointwise(DoubleNear(1e-4), expected));
    for (const char* const policy : {"hot", "lru", "lfu"}) {
      RunConfig tiered = config(policy);
      tiered.run.device = "cuda";
      // 38 slots in each table: two have rows of 8 columns, two of one, all with a number of state.
      tiered.embedding.memory_bytes = 38 * (2 * 36 + 2 * 8);
      tiered.embedding.step_rows = 20;
      tiered.embedding.policy = policy;
      if (std::string(policy) == "hot") tiered.embedding.warmup_steps = 5;
      tiered.checkpoint.every_steps = 20;
      tiered.train.steps = 20;
      train_alone(tiered);
      tiered.train.steps = 40;
      train_alone(tiered);
      expect_same_tensors(last_checkpoint(tiered), last_checkpoint(whole));
    }
  }
}

TEST(RecommenderCuda, MicroBatchesChangeNoBitAndAStoppedRunContinues) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const Clicks data;
  for (const std::string recipe : {"fp32", "bf16"}) {
    const auto config = [&](const std::string& name) {
      RunConfig config = data.config("wide_deep", name + recipe);
      config.run.device = "cuda";
      config.precision.recipe = recipe;
      config.recommender.grain = 32;
      config.train.steps = 60;
      config.schedule.decay = "constant";
      return config;
    };
    const RunConfig whole = config("whole");
    train_alone(whole);
    RunConfig cut = config("cut");
    cut.train.micro_batch = 64;
    cut.checkpoint.every_steps = 30;
    cut.train.steps = 30;
    train_alone(cut);
    cut.train.steps = 60;
    train_alone(cut);
    expect_same_tensors(last_checkpoint(cut), last_checkpoint(whole));
  }
}

/// Losses of a run of `ranks` ranks.
std::vector<double> losses_over(int ranks, const Clicks& data, const RunConfig& config) {
  expect_all_succeed(ranks, [&](std::shared_ptr<comm::Group> group) {
    train(config, std::move(group), {.quiet = true});
  });
  std::vector<double> losses;
  for (const auto& line : data.metrics(config.run.name)) losses.push_back(line["loss"]);
  EXPECT_EQ(losses.size(), 40u);
  return losses;
}

RunConfig over_ranks(const Clicks& data, const std::string& name, const std::string& sharding,
                     const std::string& transfer) {
  RunConfig config = data.config("dlrm", name + sharding + transfer);
  config.run.device = "cuda";
  config.train.steps = 40;
  config.embedding.sharding = sharding;
  config.embedding.optimizer = "adagrad";  // tables can be cut by columns
  config.embedding.transfer = transfer;
  return config;
}

/// Ranks that share a GPU exchange ids, rows and gradients through Gloo.
TEST(RecommenderCuda, TwoRanksOnOneCardTrainToTheLossesOfOne) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const Clicks data;
  const std::vector<double> expected =
      losses_over(1, data, over_ranks(data, "one", "auto", "auto"));
  for (const std::string sharding : {"row", "table", "column", "replicated"})
    for (const std::string transfer : {"bags", "rows"}) {
      SCOPED_TRACE(sharding + ", " + transfer);
      EXPECT_THAT(losses_over(2, data, over_ranks(data, "two", sharding, transfer)),
                  Pointwise(DoubleNear(1e-4), expected));
      for (const std::string exchange : {"bf16", "mxfp8"}) {
        RunConfig rounded = over_ranks(data, exchange, sharding, transfer);
        rounded.embedding.exchange = exchange;
        EXPECT_THAT(losses_over(2, data, rounded), Pointwise(DoubleNear(3e-2), expected));
      }
    }
  RunConfig dynamic = over_ranks(data, "dynamic", "row", "rows");
  make_dynamic(dynamic);
  RunConfig of_cpu = dynamic;
  of_cpu.run.device = "cpu";
  of_cpu.run.name += "_cpu";
  of_cpu.run.folder += "_cpu";
  EXPECT_THAT(losses_over(2, data, dynamic),
              Pointwise(DoubleNear(1e-4), losses_over(2, data, of_cpu)));
}

/// Ranks with cards of their own exchange them through NCCL.
TEST(RecommenderCuda, RanksWithCardsOfTheirOwnTrainToTheLossesOfOne) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const int cards = std::min(count_gpus(), 4);
  if (cards < 2) GTEST_SKIP() << "needs 2 cards";
  const Clicks data;
  const std::vector<double> expected =
      losses_over(1, data, over_ranks(data, "one", "auto", "auto"));
  for (const std::string sharding : {"row", "table"})
    for (const std::string transfer : {"bags", "rows"})
      EXPECT_THAT(losses_over(cards, data, over_ranks(data, "cards", sharding, transfer)),
                  Pointwise(DoubleNear(1e-4), expected))
          << sharding << ", " << transfer;
}

/// Losses of a run with and without a CUDA graph. run.cuda_graph = "on" fails where the step cannot
/// be recorded.
template <class Data>
void expect_the_losses_of_operations(const std::string& model, const std::string& recipe) {
  SCOPED_TRACE(model + ", " + recipe);
  const Data data;
  const auto losses = [&](const std::string& graph) {
    RunConfig config = data.config(model, graph);
    config.run.device = "cuda";
    config.run.cuda_graph = graph;
    config.precision.recipe = recipe;
    config.recommender.grain = 64;
    config.train.steps = 40;
    config.eval.every_steps = 7;  // between replays
    train_alone(config);
    std::vector<double> found;
    for (const auto& line : data.metrics(graph)) found.push_back(line["loss"]);
    return found;
  };
  EXPECT_THAT(losses("on"), Pointwise(DoubleNear(recipe == "fp32" ? 1e-5 : 1e-3), losses("off")));
}

TEST(RecommenderCuda, AGraphTrainsToTheLossesOfItsOperations) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  for (const char* const recipe : {"fp32", "bf16"}) {
    for (const char* const model : {"wide_deep", "deepfm", "dlrm", "dcnv2", "mmoe"})
      expect_the_losses_of_operations<Clicks>(model, recipe);
    for (const char* const model : {"din", "dien", "can"})
      expect_the_losses_of_operations<Histories>(model, recipe);
  }
}

TEST(RecommenderCuda, AucOfGroupsIsTheCpus) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  constexpr int64_t kRows = 100'000;
  // Few different scores, so that many rows tie, and some rows without a label.
  const at::Tensor scores = at::randn({kRows}).mul(100).round();
  const at::Tensor labels = at::rand({kRows}).gt(0.7).to(at::kFloat);
  labels.slice(0, 0, 100).fill_(std::numeric_limits<float>::quiet_NaN());
  const at::Tensor groups = at::randint(1000, {kRows}, at::kLong);
  EXPECT_EQ(exact_auc(scores.to(at::kCUDA), labels), exact_auc(scores, labels));
  EXPECT_EQ(grouped_auc(scores.to(at::kCUDA), labels, groups), grouped_auc(scores, labels, groups));
}

}  // namespace
}  // namespace dovetail::train::recommender_cuda_test
