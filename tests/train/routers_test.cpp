// ctest-labels: threads
// What routers keep and count over the steps, micro-batches and ranks of a run.
#include "dovetail/train/ranks/router_bias.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/models/gpt.h"
#include "dovetail/moe/layer.h"
#include "dovetail/train/load_run.h"
#include "dovetail/train/loop/resume.h"
#include "dovetail/train/resolve/resolve.h"
#include "tests/comm/ranks.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::routers_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kRate = 0.01;
const std::string kFirst = "router.bias.blocks.0.moe";

RunConfig mixture(const test::TinyRun& run, const std::string& name, int64_t steps = 12) {
  RunConfig config = run.config(name);
  config.precision.recipe = "fp64";
  config.model.moe.experts = 6;
  config.model.moe.score = "sigmoid";
  config.model.moe.load_loss = 0;
  config.model.moe.bias_update_rate = kRate;
  config.model.moe.second_expert = "random";
  config.train.steps = steps;
  config.train.micro_batch = 1;
  return config;
}

std::map<std::string, at::Tensor> trained_on(int ranks, const RunConfig& config,
                                             double* loss = nullptr) {
  expect_all_succeed(ranks, [&](std::shared_ptr<comm::Group> group) {
    const bool first = group->rank() == 0;
    const TrainResult result = train(config, std::move(group), {.quiet = true});
    if (first && loss != nullptr) *loss = result.loss;
  });
  return io::read_latest_checkpoint(config.folder() / "checkpoints").tensors;
}

TEST(RouterBias, MovesByTheChoicesOfAllRanksAndMicroBatches) {
  const test::TinyRun run;
  double loss_alone = 0, loss_of_two = 0;
  const auto alone = trained_on(1, mixture(run, "alone"), &loss_alone);
  const auto of_two = trained_on(2, mixture(run, "two"), &loss_of_two);
  EXPECT_NEAR(loss_of_two, loss_alone, 1e-10);
  EXPECT_TRUE(at::equal(of_two.at(kFirst), alone.at(kFirst)));
  EXPECT_GT(alone.at(kFirst).abs().max().item<float>(),
            1.5 * kRate);  // some moved in one direction several times
  EXPECT_TRUE(alone.contains("router.bias.blocks.1.moe"));
}

TEST(RouterBias, GoesOnFromACheckpointBitForBit) {
  const test::TinyRun run;
  const auto straight = trained_on(1, mixture(run, "straight"));
  RunConfig cut = mixture(run, "cut");
  cut.train.time_limit_s = 1e-9;  // a process makes one step
  for (int process = 0; process < 3; ++process) trained_on(1, cut);
  const LoadedModel loaded = load_model(cut.folder());
  const auto stored = io::read_latest_checkpoint(cut.folder() / "checkpoints").tensors;
  EXPECT_TRUE(at::equal(moe::layers_of(*loaded.model)[0].second->router().bias, stored.at(kFirst)));
  EXPECT_GT(stored.at(kFirst).abs().max().item<float>(), 0);
  const auto joined = trained_on(1, mixture(run, "cut"));
  ASSERT_EQ(joined.size(), straight.size());
  for (const auto& [name, tensor] : straight)
    EXPECT_TRUE(at::equal(tensor, joined.at(name))) << name;
}

TEST(RouterBias, RefusesTensorsThatDoNotFit) {
  models::ModelConfig config = {.layers = 1, .width = 32, .heads = 2, .context = 8};
  config.moe.experts = 4;
  config.moe.bias_update_rate = kRate;
  models::GPT model(models::resolve_model_config(config, 50));
  RouterBias bias(model);
  EXPECT_THAT([&] { bias.load({}); },
              ThrowsMessage<UserError>(HasSubstr("has no router.bias.blocks.0.moe")));
  EXPECT_THAT([&] { bias.load({{kFirst, at::zeros({5})}}); },
              ThrowsMessage<UserError>(HasSubstr("of 4 experts")));
  EXPECT_THAT(
      [&] { bias.load({{kFirst, at::zeros({4})}, {"router.bias.blocks.9.moe", at::zeros({4})}}); },
      ThrowsMessage<UserError>(HasSubstr("blocks.9")));
  bias.load({{kFirst, at::arange(4, at::kFloat)}, {"model.embed.weight", at::zeros({1})}});
  EXPECT_EQ(moe::layers_of(model)[0].second->router().bias[3].item<float>(), 3);
}

double loss_on(int ranks, const char* scope) {
  const test::TinyRun run;
  RunConfig config = run.config();
  config.precision.recipe = "fp64";
  config.model.moe.experts = 6;
  config.model.moe.router = "noisy_top_k";
  config.model.moe.load_loss = 1;
  config.model.moe.load_scope = scope;
  config.model.moe.importance_loss = 0;
  config.train.steps = 6;
  config.train.checkpoint_activations = true;
  double loss = 0;
  trained_on(ranks, config, &loss);
  return loss;
}

TEST(LoadScope, OverTheGlobalBatchRanksAndRecomputationChangeNothing) {
  const double alone = loss_on(1, "global_batch");
  for (const int ranks : {2, 4}) EXPECT_NEAR(loss_on(ranks, "global_batch"), alone, 1e-10) << ranks;
  EXPECT_NEAR(loss_on(1, "micro_batch"), alone, 1e-10);  // one micro-batch, one rank
  EXPECT_GT(std::abs(loss_on(2, "micro_batch") - alone), 1e-7);
}

TEST(LoadScope, OverTheGlobalBatchRanksNeedNoEqualShares) {
  const test::TinyRun run;
  const auto loss_of = [&](int ranks, int64_t micro_batch) {
    RunConfig config = run.config(fmt::format("uneven{}_{}", ranks, micro_batch));
    config.precision.recipe = "fp64";
    config.model.moe.experts = 6;
    config.model.moe.load_loss = 1;
    config.model.moe.load_scope = "global_batch";
    config.train.batch = 5;
    config.train.micro_batch = micro_batch;
    double loss = 0;
    trained_on(ranks, config, &loss);
    return loss;
  };
  EXPECT_NEAR(loss_of(2, 0), loss_of(1, 0), 1e-10);
  EXPECT_GT(loss_of(2, 1), 0);  // the second rank's third pass is empty
}

TEST(LoadScope, ByDefaultFollowsFromTheMicroBatches) {
  const test::TinyRun run;
  const auto scope = [&](int64_t micro_batch, const char* asked, double load_loss) {
    RunConfig config = run.config();
    config.model.moe = {.experts = 6, .load_scope = asked, .load_loss = load_loss};
    config.train.micro_batch = micro_batch;
    return resolve_run(config, *comm::local_groups(1)[0], {.dry_run = true, .quiet = true})
        .config.model.moe.load_scope;
  };
  EXPECT_EQ(scope(0, "auto", -1), "global_batch");
  EXPECT_EQ(scope(4, "auto", -1), "global_batch");  // the whole batch
  EXPECT_EQ(scope(2, "auto", -1), "sequence");
  EXPECT_EQ(scope(2, "global_batch", -1), "global_batch");
  EXPECT_EQ(scope(2, "micro_batch", 0.01), "micro_batch");
  EXPECT_EQ(scope(2, "auto", 0), "auto");
  EXPECT_THROW(scope(2, "micro_batch", 0), UserError);  // nothing reads it
}

TEST(LoadScope, ARunOfVersion01GoesOnAndSaysWhatIsOther) {
  const test::TinyRun run;
  RunConfig config = run.config();
  config.model.moe = {.experts = 6, .load_scope = "micro_batch"};
  config.train.time_limit_s = 1e-9;
  trained_on(1, config);
  nlohmann::json state = io::read_latest_checkpoint(config.folder() / "checkpoints").state;
  state["config"]["model"]["moe"].erase(
      "eval_capacity_factor");  // a key that this version did not have
  const auto now = [&](const char* scope) {
    config.model.moe.load_scope = scope;
    return check_same_run(
        state, resolve_run(config, *comm::local_groups(1)[0], {.dry_run = true, .quiet = true}), 1,
        1);
  };
  EXPECT_THAT(now("micro_batch"), ::testing::IsEmpty());
  EXPECT_THAT(now("auto"), ::testing::ElementsAre(HasSubstr(
                               "model.moe.load_scope was \"micro_batch\", is \"global_batch\"")));
  // A dense model of that version also has the old default.
  config.model.moe = {};
  state["config"]["model"]["moe"] = {{"experts", 0}, {"load_scope", "micro_batch"}};
  EXPECT_THAT(now("auto"), ::testing::IsEmpty());
}

}  // namespace
}  // namespace dovetail::train::routers_test
