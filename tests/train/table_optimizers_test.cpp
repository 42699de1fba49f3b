#include "dovetail/train/embedding_tables/optimizers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/train/embedding_tables/lookups.h"
#include "dovetail/train/trainer.h"
#include "tests/comm/ranks.h"
#include "tests/ops/testing.h"
#include "tests/train/clicks.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::table_optimizers_test {
namespace {

using embedding::OptimizerKind;
using embedding::OptimizerSpec;
using test::Clicks;
using test::expect_same_tensors;
using test::last_checkpoint;
using test::train_alone;
using ::testing::HasSubstr;
using testing::user_error;

embedding::PackSpec tables(const std::vector<std::string>& names) {
  embedding::PackSpec pack;
  for (const std::string& name : names) pack.tables.push_back({.name = name, .rows = 5, .dim = 4});
  return pack;
}

TEST(SetOptimizers, TheLastOverrideThatNamesATableDecides) {
  EmbeddingSection config;
  config.optimizer = "adagrad";
  config.lr = 0.5;
  config.eps = 1e-4;
  config.weight_decay = 0.25;
  config.overrides = {
      {.tables = {"*.wide", "tags"}, .optimizer = "sgd", .lr = 2},
      {.tables = {"user.wide"}, .optimizer = "adam", .betas = {0.5, 0.75}, .weight_decay = 0},
      {.tables = {"item"}, .lr = 0.125}};
  embedding::PackSpec pack = tables({"user", "item", "tags", "user.wide", "item.wide"});
  set_optimizers(config, pack);
  const OptimizerSpec general{
      .kind = OptimizerKind::kAdagrad, .lr = 0.5, .eps = 1e-4, .weight_decay = 0.25};
  OptimizerSpec sgd = general, adam = general, slow = general;
  sgd.kind = OptimizerKind::kSgd;
  sgd.lr = 2;
  adam.kind = OptimizerKind::kAdam;
  adam.beta1 = 0.5;
  adam.beta2 = 0.75;
  adam.weight_decay = 0;
  slow.lr = 0.125;
  EXPECT_EQ(pack.optimizer, general);
  const std::vector<OptimizerSpec> expected = {general, slow, sgd, adam, sgd};
  for (int64_t t = 0; t < 5; ++t)
    EXPECT_EQ(optimizer_of(pack, t), expected[static_cast<size_t>(t)]) << t;
  config.overrides[1].tables = {"users.wide"};
  EXPECT_THAT(user_error([&] { set_optimizers(config, pack); }),
              HasSubstr("\"users.wide\" is no table of this model"));
}

TEST(CheckTableOptimizers, RefusesWhatWouldDoNothing) {
  const auto refusal = [](const EmbeddingOverride& entry, const EmbeddingSection& general = {}) {
    EmbeddingSection config = general;
    config.overrides = {entry};
    return user_error([&] { check_table_optimizers(config); });
  };
  EXPECT_THAT(refusal({}), HasSubstr("names no tables"));
  EXPECT_THAT(refusal({.tables = {"a", "b"}}), HasSubstr("override of a, b gives no optimizer"));
  EXPECT_THAT(refusal({.tables = {"a"}, .momentum = 0.5}),
              HasSubstr("momentum does nothing with optimizer"));
  EXPECT_THAT(refusal({.tables = {"a"}, .optimizer = "sgd", .eps = 0.5}),
              HasSubstr("eps does nothing"));
  EXPECT_THAT(refusal({.tables = {"a"}, .betas = {0.5, 0.5}}), HasSubstr("betas does nothing"));
  EXPECT_THAT(refusal({.tables = {"a"}, .optimizer = "adam", .betas = {0.5}}),
              HasSubstr("betas has 1 entries"));
  EXPECT_THAT(refusal({.tables = {"a"}, .weight_decay = -0.5}), HasSubstr("weight_decay is -0.5"));
  EmbeddingSection general;
  general.momentum = 0.5;  // momentum for the override
  general.overrides = {{.tables = {"a"}, .optimizer = "momentum"}};
  EXPECT_NO_THROW(check_table_optimizers(general));
  EXPECT_THAT(refusal({.tables = {"a"}, .optimizer = "momentum", .momentum = 0.25}, general),
              HasSubstr("embedding.momentum does nothing"));
}

/// Adam for one feature, SGD for the wide part, the general optimizer for what is left.
RunConfig mixed_config(const Clicks& data, const std::string& name) {
  RunConfig config = data.config("deepfm", name);
  config.schedule.decay = "constant";
  config.recommender.grain = 16;
  config.embedding.overrides = {
      {.tables = {"user"}, .optimizer = "adam", .lr = 0.02},
      {.tables = {"*.wide"}, .optimizer = "sgd", .lr = 1, .weight_decay = 1e-4}};
  config.train.steps = 60;
  return config;
}

void train_on(int ranks, const RunConfig& config) {
  expect_all_succeed(ranks, [&](const std::shared_ptr<comm::Group>& group) {
    train(config, group, {.quiet = true});
  });
}

/// A checkpoint of 100 steps of the run, of any number of ranks, is within 64 ulp of each tensor's
/// largest element.
void expect_close_tensors(const io::Snapshot& a, const io::Snapshot& b, const std::string& what) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    if (!at::isFloatingType(tensor.scalar_type())) continue;
    const double scale = tensor.abs().max().item<double>() + 1e-30;
    EXPECT_LT((tensor - b.tensors.at(name)).abs().max().item<double>() / scale, 64 * 0x1p-23)
        << what << ": " << name;
  }
}

TEST(RecommenderOptimizers, StateAndPlanAreOfEachTable) {
  const Clicks data;
  RunConfig config = mixed_config(data, "run");
  config.train.steps = 200;
  train_alone(config);
  EXPECT_GT(data.metrics("run").back()["auc"], 0.8);
  const io::Snapshot end = last_checkpoint(config);
  EXPECT_EQ(end.tensors.at("embedding.user.state").size(1), 16);
  EXPECT_EQ(end.tensors.at("embedding.item.state").size(1), 1);
  EXPECT_FALSE(end.tensors.contains("embedding.user.wide.state"));
  const auto plan =
      nlohmann::json::parse(read_file(data.file("run", "embedding_plan.json").string()));
  std::map<std::string, std::string> kinds;
  for (const auto& pack : plan["packs"])
    for (const auto& table : pack["tables"]) kinds[table["name"]] = pack["optimizer"]["kind"];
  EXPECT_EQ(kinds, (std::map<std::string, std::string>{{"user", "adam"},
                                                       {"item", "rowwise_adagrad"},
                                                       {"user.wide", "sgd"},
                                                       {"item.wide", "sgd"}}));
}

TEST(RecommenderOptimizers, RanksAndDeltasEndAsOneRank) {
  const Clicks data;
  const RunConfig one = mixed_config(data, "one");
  train_alone(one);
  for (const char* sharding : {"row", "table"}) {
    RunConfig two = mixed_config(data, sharding);
    two.embedding.sharding = sharding;
    two.checkpoint = {.every_steps = 10, .keep = 5, .full_every = 3};
    two.train.steps = 30;
    train_on(2, two);  // ends with a delta
    two.train.steps = 60;
    train_on(3, two);
    expect_close_tensors(last_checkpoint(one), last_checkpoint(two), sharding);
  }
}

TEST(RecommenderOptimizers, TablesWithoutAVocabularyHaveThemToo) {
  const Clicks data;
  const RunConfig fixed = mixed_config(data, "fixed");
  RunConfig whole = mixed_config(data, "whole");
  whole.rows.sparse = {{.columns = {"user"}, .max_rows = 60, .max_bytes = "1MiB"},
                       {.columns = {"item"}, .max_rows = 60}};
  whole.checkpoint = {.every_steps = 10, .keep = 5, .full_every = 3};
  RunConfig parts = whole;
  parts.run.folder = data.file("parts", "").string();
  train_alone(whole);
  parts.train.steps = 30;
  train_alone(parts);
  parts.train.steps = 60;
  train_alone(parts);
  expect_same_tensors(last_checkpoint(whole), last_checkpoint(parts));
  EXPECT_EQ(last_checkpoint(whole).tensors.at("embedding.user.state").size(1), 16);
}

TEST(RecommenderOptimizers, AResumedRunMayChangeNumbersAlone) {
  const Clicks data;
  RunConfig config = mixed_config(data, "run");
  config.train.steps = 10;
  train_alone(config);
  config.train.steps = 20;
  RunConfig other = config;
  other.embedding.overrides[0].optimizer = "momentum";
  EXPECT_THAT([&] { train_alone(other); },
              ::testing::ThrowsMessage<UserError>(HasSubstr("embedding.override.user.optimizer")));
  other = config;
  other.embedding.overrides.pop_back();
  EXPECT_THAT([&] { train_alone(other); }, ::testing::ThrowsMessage<UserError>(HasSubstr(
                                               "embedding.override.*.wide was there, is absent")));
  config.embedding.overrides[0].lr = 0.01;
  EXPECT_NO_THROW(train_alone(config));
}

}  // namespace
}  // namespace dovetail::train::table_optimizers_test
