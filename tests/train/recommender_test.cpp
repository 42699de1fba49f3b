#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/train/load_run.h"
#include "dovetail/train/optimizer/lr_schedule.h"
#include "dovetail/train/recommender/training.h"
#include "tests/comm/ranks.h"
#include "tests/embedding/testing.h"
#include "tests/train/clicks.h"
#include "tests/train/histories.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::recommender_test {
namespace {

using test::Clicks;
using test::expect_same_tensors;
using test::Histories;
using test::last_checkpoint;
using test::train_alone;
using ::testing::HasSubstr;

class EveryModel : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryModel, LearnsWhichPairsAreClicked) {
  const Clicks data;
  const RunConfig config = data.config(GetParam());
  train_alone(config);
  const auto lines = data.metrics("run");
  ASSERT_EQ(lines.size(), 200);
  EXPECT_EQ(lines[9]["samples"], 1280);
  EXPECT_FALSE(lines[9].contains("auc"));
  // With all hidden numbers known, AUC is 0.90. With users and items alone it is 0.50.
  EXPECT_GT(lines[199]["auc"], 0.8);
  EXPECT_LT(lines[199]["normalized_entropy"], 0.75);
  EXPECT_NEAR(lines[199]["calibration"].get<double>(), 1, 0.1);
  EXPECT_EQ(lines[199]["validation_samples"], 600);
  EXPECT_LT(lines[0]["loss"], 1.2 * std::log(2));
  EXPECT_THAT(read_file(data.file("run", "report.html").string()), HasSubstr("AUC"));
}

TEST_P(EveryModel, ResumesBitForBit) {
  const Clicks data;
  const RunConfig whole = data.config(GetParam(), "whole");
  train_alone(whole);
  RunConfig cut = data.config(GetParam(), "cut");
  cut.checkpoint.every_steps = 60;
  cut.train.steps = 100;
  cut.schedule.decay = "constant";
  RunConfig uncut = cut;
  uncut.run.folder = data.file("uncut", "").parent_path().string();
  train_alone(uncut);
  RunConfig first = cut;
  first.train.steps = 60;
  train_alone(first);
  train_alone(cut);
  expect_same_tensors(last_checkpoint(cut), last_checkpoint(uncut));
}

INSTANTIATE_TEST_SUITE_P(Recommender, EveryModel,
                         ::testing::Values("wide_deep", "deepfm", "dlrm", "dcnv2", "mmoe"));

class EverySequenceModel : public ::testing::TestWithParam<const char*> {};

TEST_P(EverySequenceModel, LearnsFromTheEventsThatTheCandidateIsLike) {
  const Histories data;
  train_alone(data.config(GetParam()));
  const auto lines = data.metrics("run");
  EXPECT_GT(lines.back()["auc"], 0.75);
  const bool auxiliary = std::string(GetParam()) == "dien";
  ASSERT_EQ(lines.back().contains("auxiliary_loss"), auxiliary);
  if (auxiliary) {
    EXPECT_LT(lines.back()["auxiliary_loss"], lines[0]["auxiliary_loss"]);
  }
}

TEST_P(EverySequenceModel, MicroBatchesAreTheBatch) {
  const Histories data;
  RunConfig whole = data.config(GetParam(), "whole"), parts = data.config(GetParam(), "parts");
  for (RunConfig* config : {&whole, &parts}) config->train.steps = 10;
  whole.recommender.grain = parts.recommender.grain = 25;
  parts.train.micro_batch = 50;
  train_alone(whole);
  train_alone(parts);
  expect_same_tensors(last_checkpoint(whole), last_checkpoint(parts));
  EXPECT_EQ(data.metrics("whole").back()["loss"], data.metrics("parts").back()["loss"]);
}

TEST_P(EverySequenceModel, ResumesBitForBit) {
  const Histories data;
  RunConfig uncut = data.config(GetParam(), "uncut"), cut = data.config(GetParam(), "cut");
  for (RunConfig* config : {&uncut, &cut}) {
    config->train.steps = 20;
    config->schedule.decay = "constant";
  }
  train_alone(uncut);
  RunConfig first = cut;
  first.train.steps = 8;
  train_alone(first);
  train_alone(cut);
  expect_same_tensors(last_checkpoint(cut), last_checkpoint(uncut));
}

INSTANTIATE_TEST_SUITE_P(Recommender, EverySequenceModel, ::testing::Values("din", "dien", "can"));

TEST(Recommender, SequencesArePooledByOtherModels) {
  const Histories data;
  RunConfig config = data.config("dcnv2");
  config.train.steps = 20;
  train_alone(config);
  EXPECT_FALSE(data.metrics("run").back().contains("auxiliary_loss"));
}

/// Two tasks with opposite labels and few rows that have the second one.
TEST(Recommender, TasksAreLearntTogetherAndMeasuredByName) {
  const Clicks data;
  std::string text = read_file(data.file("", "clicks.tsv").string());
  std::string tasks;
  int row = -1;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line); ++row) {
    const bool clicked = line.back() == '1';
    tasks += line + (row < 0        ? "\tnot clicked\n"
                     : row % 3 == 0 ? fmt::format("\t{:d}\n", !clicked)
                                    : "\t\n");
  }
  write_file_atomically(data.file("", "tasks.tsv"), tasks);
  RunConfig whole = data.config("mmoe", "whole");
  whole.rows.files = {data.file("", "tasks.tsv").string()};
  whole.rows.label = {"clicked", "not clicked"};
  whole.rows.missing_label = "mask";
  whole.rows.group = "user";
  whole.recommender.task_weights = {1, 0.5};
  whole.log.tensorboard = true;
  whole.recommender.grain = 37;
  RunConfig parts = whole;
  parts.run.name = "parts";
  parts.run.folder = data.file("parts", "").parent_path().string();
  parts.train.micro_batch = 37;
  train_alone(whole);
  train_alone(parts);
  const auto lines = data.metrics("whole");
  const auto& last = lines.back();
  EXPECT_FALSE(last.contains("auc"));
  ASSERT_EQ(last["tasks"].size(), 2);
  EXPECT_EQ(last["tasks"]["clicked"]["samples"], 600);
  EXPECT_EQ(last["tasks"]["not clicked"]["samples"], 200);
  for (const char* task : {"clicked", "not clicked"}) {
    EXPECT_GT(last["tasks"][task]["auc"], 0.8) << task;
    EXPECT_GT(last["tasks"][task]["gauc"], 0.7) << task;  // users have only a few rows each
    EXPECT_NEAR(last["tasks"][task]["calibration"].get<double>(), 1, 0.15) << task;
    EXPECT_THAT(read_file(data.file("whole", "report.html").string()),
                HasSubstr("AUC, " + std::string(task)));
  }
  EXPECT_NEAR(last["validation_loss"].get<double>(),
              last["tasks"]["clicked"]["log_loss"].get<double>() +
                  0.5 * last["tasks"]["not clicked"]["log_loss"].get<double>(),
              1e-12);
  // First losses: an untrained model predicts about 1/2.
  EXPECT_NEAR(lines[0]["loss"].get<double>(), 1.5 * std::log(2), 0.3);
  EXPECT_NEAR(lines[0]["loss"].get<double>(), data.metrics("parts")[0]["loss"].get<double>(), 1e-5);
  EXPECT_NEAR(lines[30]["loss"].get<double>(), data.metrics("parts")[30]["loss"].get<double>(),
              1e-3);
}

TEST(Recommender, EveryOptimizerOfTablesLearns) {
  const Clicks data;
  for (const char* optimizer : {"sgd", "momentum", "adagrad", "rowwise_adagrad", "adam"}) {
    RunConfig config = data.config("deepfm", optimizer);
    config.embedding.optimizer = optimizer;
    config.embedding.lr = std::string(optimizer) == "sgd"        ? 5
                          : std::string(optimizer) == "momentum" ? 0.5
                                                                 : 0.05;
    train_alone(config);
    EXPECT_GT(data.metrics(optimizer).back()["auc"], 0.8) << optimizer;
  }
}

TEST(Recommender, MicroBatchesAreTheBatch) {
  const Clicks data;
  RunConfig whole = data.config("dlrm", "whole"), parts = data.config("dlrm", "parts");
  for (RunConfig* config : {&whole, &parts}) config->train.steps = 20;
  whole.recommender.grain = parts.recommender.grain = 25;
  parts.train.micro_batch = 50;
  parts.embedding.packing = false;
  parts.embedding.groups = 2;
  train_alone(whole);
  train_alone(parts);
  expect_same_tensors(last_checkpoint(whole), last_checkpoint(parts));
}

/// Hit rates and counters of keys in each step cover only training. Each evaluation reads rows that
/// no step has read.
TEST(Recommender, AnEvaluationLeavesNoTraceInTheTables) {
  const Clicks data;
  for (const char* policy : {"hot", "lru", "lfu"}) {
    std::vector<std::vector<double>> hit_rates;
    std::vector<std::string> keys;
    for (const int64_t every : {0, 1}) {
      RunConfig config = data.config("wide_deep", fmt::format("{}-{}", policy, every));
      config.rows.sparse[0].num_rows = 3000;
      config.rows.sparse[1].num_rows = 0;
      config.rows.sparse[1].max_rows = 60;
      config.embedding.dynamic.admission = "count";
      config.embedding.dynamic.max_candidates = 100;
      config.embedding.dynamic.eviction = "age";
      config.embedding.dynamic.evict_steps = 4;
      config.embedding.dynamic.max_age = 3;
      config.embedding.memory_bytes = 80000;
      config.embedding.policy = policy;
      config.embedding.warmup_steps = 5;
      config.embedding.refresh_steps = 3;
      config.train.batch = 16;
      config.train.steps = 20;
      config.eval.every_steps = every;
      config.log.tables_every = 1;
      train_alone(config);
      hit_rates.emplace_back();
      std::istringstream lines(read_file(data.file(config.run.name, "timings.jsonl").string()));
      for (std::string line; std::getline(lines, line);)
        hit_rates.back().push_back(nlohmann::json::parse(line).at("hit_rate"));
      keys.push_back(read_file(data.file(config.run.name, "tables.jsonl").string()));
    }
    EXPECT_EQ(hit_rates[0].size(), 20);
    EXPECT_EQ(hit_rates[0], hit_rates[1]) << policy;
    EXPECT_LT(hit_rates[0][1], 1) << "a step without a miss tells nothing";
    EXPECT_EQ(keys[0], keys[1]) << policy;
    EXPECT_THAT(keys[0], HasSubstr("\"evicted\":1"));
  }
}

TEST(Recommender, RefusesWhatItCannotTrain) {
  const Clicks data;
  const auto refusal = [&](auto change) {
    RunConfig config = data.config("deepfm");
    change(config);
    try {
      train_alone(config);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto refusal_on_gpu = [&](auto change) {
    return refusal([&](RunConfig& c) {
      c.run.device = "cuda";
      change(c);
    });
  };
  EXPECT_THAT(refusal_on_gpu([](RunConfig& c) { c.embedding.row_dtype = "mxfp8"; }),
              HasSubstr("embedding.row_dtype"));
  EXPECT_THAT(refusal_on_gpu([](RunConfig& c) { c.memory.budget = "0.8x"; }),
              HasSubstr("memory.budget"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.rows.sparse[1].num_rows = 0; }),
              HasSubstr("\"item\" has no num_rows"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.train.micro_batch = 50; }),
              HasSubstr("must be a multiple of recommender.grain = 256"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.embedding.groups = 5; }),
              HasSubstr("cannot be in 5 groups"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.embedding.placements = {{.tables = {"nobody"}}}; }),
              HasSubstr("\"nobody\" is no table of this model"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.embedding.rank_bytes = 100; }),
              HasSubstr("embedding.rank_bytes is 100"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.embedding.memory_bytes = 100; }),
              HasSubstr("memory_bytes is 100, but at least"));
  const RunConfig config = data.config("deepfm");
  RunConfig short_run = config;
  short_run.train.steps = 2;
  train_alone(short_run);
  EXPECT_THAT(refusal([](RunConfig& c) { c.recommender.dim = 4; }),
              HasSubstr("recommender.dim was 8, is 4"));
  try {
    load_model(config.folder());
    ADD_FAILURE() << "loaded";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("belongs to a recommender (recommender.model = \"deepfm\")"));
  }
}

}  // namespace
}  // namespace dovetail::train::recommender_test
