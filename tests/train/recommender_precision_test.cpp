// Recommenders whose dense part computes in BF16 (precision.recipe).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/train/load_run.h"
#include "dovetail/train/recommender/trained_recommender.h"
#include "dovetail/train/resolve/resolve.h"
#include "tests/comm/ranks.h"
#include "tests/train/histories.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::recommender_precision_test {
namespace {

using test::Clicks;
using test::expect_same_tensors;
using test::Histories;
using test::last_checkpoint;
using test::train_alone;
using ::testing::HasSubstr;

bool reads_events(const std::string& model) {
  return model == "din" || model == "dien" || model == "can";
}

RunConfig config_of(const std::string& model, const Histories& data, const std::string& name,
                    const std::string& recipe) {
  RunConfig config =
      reads_events(model) ? data.config(model, name) : data.Clicks::config(model, name);
  config.precision.recipe = recipe;
  return config;
}

bool is_bfloat16(const at::Tensor& x) { return at::equal(x, x.to(at::kBFloat16).to(at::kFloat)); }

/// Returns the standard error of an AUC of `rows` rows, with the event in `positive` of them
/// (Hanley and McNeil 1982, equation 1).
double standard_error(double auc, double positive, double rows) {
  const double q1 = auc / (2 - auc), q2 = 2 * auc * auc / (1 + auc), negative = rows - positive;
  return std::sqrt(
      (auc * (1 - auc) + (positive - 1) * (q1 - auc * auc) + (negative - 1) * (q2 - auc * auc)) /
      (positive * negative));
}

class EveryModelInBFloat16 : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryModelInBFloat16, RanksAsInFloat32) {
  const Histories data;
  double auc[2];
  double first_loss[2];
  for (const int bf16 : {0, 1}) {
    RunConfig config =
        config_of(GetParam(), data, bf16 == 1 ? "bf16" : "fp32", bf16 == 1 ? "bf16" : "fp32");
    config.train.steps = 200;
    train_alone(config);
    const auto lines = data.metrics(config.run.name);
    auc[bf16] = lines.back()["auc"];
    first_loss[bf16] = lines[0]["loss"];
  }
  EXPECT_NE(first_loss[0], first_loss[1]) << "nothing was rounded";
  EXPECT_NEAR(first_loss[0], first_loss[1], 1e-2);
  const double rows = reads_events(GetParam()) ? 800 : 600;
  EXPECT_LT(std::abs(auc[1] - auc[0]), standard_error(auc[0], rows / 2, rows));
}

/// The checkpoint has float32 masters. A run in parts has the bits of the whole run.
TEST_P(EveryModelInBFloat16, MicroBatchesAndResumedRunsChangeNoBit) {
  const Histories data;
  const auto config = [&](const std::string& name) {
    RunConfig config = config_of(GetParam(), data, name, "bf16");
    config.train.steps = 12;
    config.schedule.decay = "constant";
    config.recommender.grain = 16;
    return config;
  };
  const RunConfig whole = config("whole");
  RunConfig cut = config("cut");
  cut.train.micro_batch = 32;
  cut.train.steps = 5;
  train_alone(whole);
  train_alone(cut);
  cut.train.steps = 12;
  cut.precision.recipe = "auto";  // keeps the precision, whatever a probe would say
  train_alone(cut);
  const io::Snapshot found = last_checkpoint(cut);
  expect_same_tensors(found, last_checkpoint(whole));
  EXPECT_EQ(found.state.at("precision"), "bf16");
  for (const auto& [name, tensor] : found.tensors) {
    if (!name.starts_with("model.") || tensor.dim() < 2) continue;
    EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
    EXPECT_FALSE(is_bfloat16(tensor)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(RecommenderPrecision, EveryModelInBFloat16,
                         ::testing::Values("wide_deep", "deepfm", "dlrm", "dcnv2", "mmoe", "din",
                                           "dien", "can"));

TEST(RecommenderPrecision, ARunKeepsItsPrecision) {
  const Histories data;
  RunConfig config = config_of("dlrm", data, "run", "bf16");
  config.train.steps = 2;
  config.eval.every_steps = 0;
  train_alone(config);
  config.train.steps = 4;
  config.precision.recipe = "fp32";
  EXPECT_THAT([&] { train_alone(config); },
              ::testing::ThrowsMessage<UserError>(HasSubstr("was trained in bf16 so far")));
  const auto machine =
      nlohmann::json::parse(read_file((config.folder() / "machine.json").string()));
  EXPECT_EQ(machine["precision"]["compute"], "bf16");
  EXPECT_THAT(read_file((config.folder() / "report.html").string()), HasSubstr("precision.recipe"));
}

/// The masters of a run in BF16 are the weights of the FP32 run that it began from.
TEST(RecommenderPrecision, BeginsFromARunInFloat32) {
  const Histories data;
  RunConfig old = config_of("dcnv2", data, "old", "fp32");
  old.train.steps = 20;
  train_alone(old);
  RunConfig next = config_of("dcnv2", data, "next", "bf16");
  next.run.start_from = old.run.folder;
  next.train.steps = 1;
  next.optimizer.lr = next.embedding.lr = 1e-30;
  train_alone(next);
  const io::Snapshot before = last_checkpoint(old), after = last_checkpoint(next);
  for (const auto& [name, tensor] : before.tensors) {
    if (!name.starts_with("model.")) continue;
    EXPECT_TRUE(at::equal(tensor, after.tensors.at(name))) << name;
  }
}

/// Gradients of BF16 are summed over ranks in float32.
TEST(RecommenderPrecision, TwoRanksTrainAsOne) {
  const Histories data;
  std::vector<double> losses[2];
  for (const int ranks : {1, 2}) {
    RunConfig config = config_of("dlrm", data, std::to_string(ranks), "bf16");
    config.train.steps = 40;
    config.recommender.grain = 16;
    expect_all_succeed(ranks, [&](const std::shared_ptr<comm::Group>& group) {
      train(config, group, {.quiet = true});
    });
    for (const auto& line : data.metrics(config.run.name))
      losses[ranks - 1].push_back(line["loss"]);
  }
  EXPECT_THAT(losses[1], ::testing::Pointwise(::testing::DoubleNear(2e-3), losses[0]));
}

TEST(RecommenderPrecision, ATrainedModelComputesAsTheRunDidOrAsAsked) {
  const Histories data;
  RunConfig config = config_of("dien", data, "run", "bf16");
  config.train.steps = 20;
  train_alone(config);
  const StoredRun stored = read_stored_run(config.folder());
  EXPECT_EQ(choose_recommender_precision(stored, ""), "bf16");
  EXPECT_EQ(choose_recommender_precision(stored, "float32"), "fp32");
  EXPECT_THAT([&] { choose_recommender_precision(stored, "mxfp8"); },
              ::testing::ThrowsMessage<UserError>(
                  HasSubstr("--precision mxfp8: a recommender computes in FP32 or BF16")));
  const TrainedRecommender wide(stored), narrow(stored, "bf16");
  EXPECT_EQ(wide.trained_in(), "bf16");
  for (const auto& [name, tensor] : narrow.tensors())
    EXPECT_TRUE(at::equal(tensor, wide.tensors().at(name).to(tensor.scalar_type()))) << name;
  EXPECT_EQ(narrow.tensors().at("model.deep.0.weight").scalar_type(), at::kBFloat16);
  EXPECT_EQ(narrow.tensors().at("model.head.weight").scalar_type(), at::kFloat);
}

/// Weights take half the memory, and masters come with the optimizer's state.
TEST(RecommenderPrecision, MemoryHasTheMasters) {
  const Histories data;
  models::MemoryEstimate memory[2];
  for (const int bf16 : {0, 1}) {
    const RunConfig config = config_of("dlrm", data, "run", bf16 == 1 ? "bf16" : "fp32");
    const auto group = comm::local_groups(1)[0];
    ResolvedRun run = resolve_run(config, *group, {.dry_run = true, .quiet = true});
    resolve_precision_and_size(run, *group, std::nullopt);
    EXPECT_THAT(summary_line(run), HasSubstr(bf16 == 1 ? "tables · bf16" : "tables · fp32"));
    memory[bf16] = run.memory;
  }
  // dim 8, bottom [64], deep [16]: one dense column, two features.
  const int64_t of_linears = (1 + 1) * 64 + (64 + 1) * 8 + (8 + 3 + 1) * 16;
  EXPECT_EQ(memory[0].weights - memory[1].weights, 2 * of_linears);
  EXPECT_EQ(memory[1].optimizer - memory[0].optimizer, 4 * of_linears);
}

}  // namespace
}  // namespace dovetail::train::recommender_precision_test
