// ctest-labels: threads
//
// Runs that begin from another run, on ranks and with rows on disk. The test
// tests/cli/test_start.py compares the checkpoint files with NumPy.
#include "dovetail/train/recommender/warm_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dovetail/train/trainer.h"
#include "tests/comm/ranks.h"
#include "tests/train/clicks.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::warm_start_test {
namespace {

using test::Clicks;
using test::expect_same_tensors;
using test::last_checkpoint;
using test::train_alone;

void train_on(int ranks, const RunConfig& config) {
  expect_all_succeed(ranks, [&](const std::shared_ptr<comm::Group>& group) {
    train(config, group, {.quiet = true});
  });
}

RunConfig old_config(const Clicks& data) {
  RunConfig config = data.config("deepfm", "old");
  config.schedule.decay = "constant";
  config.recommender.grain = 16;
  config.rows.sparse.push_back({.columns = {"size"}, .ids = "integer", .max_rows = 200});
  config.train.steps = 30;
  return config;
}

/// A table twice as large, and one feature more.
RunConfig new_config(const Clicks& data, const std::string& name) {
  RunConfig config = old_config(data);
  config.run.folder = data.file(name, "").string();
  config.run.start_from = data.file("old", "").string();
  config.rows.sparse[0].num_rows = 100;
  config.rows.sparse.push_back({.columns = {"user", "item"}, .num_rows = 4000});
  return config;
}

struct Layout {
  std::string name;
  int ranks = 1;
  void (*change)(RunConfig& config) = nullptr;
};

/// Whatever the layout, the run begins with the same bits: its only step changes no weight.
TEST(WarmStart, EveryLayoutLoadsTheSame) {
  const Clicks data;
  train_alone(old_config(data));
  const auto still = [&](const std::string& name) {
    RunConfig config = new_config(data, name);
    config.train.steps = 1;
    config.embedding.lr = config.optimizer.lr = 1e-30;
    return config;
  };
  train_alone(still("one"));
  const io::Snapshot one = last_checkpoint(still("one"));
  const io::Snapshot old = last_checkpoint(old_config(data));
  const at::Tensor learnt = old.tensors.at("embedding.user.state").sum(1).nonzero().flatten();
  EXPECT_GT(learnt.numel(), 10);
  EXPECT_TRUE(
      at::equal(one.tensors.at("embedding.user.weight").narrow(0, 50, 50).index_select(0, learnt),
                old.tensors.at("embedding.user.weight").index_select(0, learnt)));
  const Layout layouts[] = {
      {"rows", 2, [](RunConfig& config) { config.embedding.sharding = "row"; }},
      {"replicas", 3, [](RunConfig& config) { config.embedding.sharding = "replicated"; }},
      {"disk", 1,
       [](RunConfig& config) {
         config.embedding.memory_bytes = 300'000;
         config.embedding.step_rows = 128;
       }},
      {"delta", 1, [](RunConfig& config) { config.checkpoint.full_every = 2; }}};
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    RunConfig config = still(layout.name);
    layout.change(config);
    if (config.checkpoint.full_every > 1) config.checkpoint.every_steps = 1;
    train_on(layout.ranks, config);
    for (const auto& [name, tensor] : last_checkpoint(config).tensors)
      if (name.starts_with("model.") ||
          (name.starts_with("embedding.") && !name.ends_with(".state"))) {
        EXPECT_TRUE(at::equal(tensor, one.tensors.at(name))) << name;
      }
    const auto started = nlohmann::json::parse(read_file(data.file(layout.name, "start.json")));
    EXPECT_EQ(started["tables"]["loaded"].size(), 6u);
    EXPECT_EQ(started["tables"]["new"].size(), 2u);
  }
}

/// A run with a new layer on two ranks, stopped and resumed on one, has the tensors of one run.
TEST(WarmStart, AnyNumberOfRanksResumes) {
  const Clicks data;
  train_alone(old_config(data));
  RunConfig whole = new_config(data, "whole"), parts = new_config(data, "parts");
  train_on(2, whole);
  parts.train.steps = 15;
  train_on(2, parts);
  parts.train.steps = 30;
  train_on(2, parts);
  expect_same_tensors(last_checkpoint(whole), last_checkpoint(parts));
}

/// With a memory plan the operations of an update are recorded, also with two beginnings.
TEST(WarmStart, APlannedStepHasTheSameBits) {
  const Clicks data;
  RunConfig old = old_config(data), eager = new_config(data, "eager"),
            planned = new_config(data, "planned");
  for (RunConfig* config : {&old, &eager, &planned}) config->recommender.deep = {256, 128};
  train_alone(old);
  planned.memory.budget = "1x";
  train_alone(eager);
  train_alone(planned);
  expect_same_tensors(last_checkpoint(eager), last_checkpoint(planned));
}

}  // namespace
}  // namespace dovetail::train::warm_start_test
