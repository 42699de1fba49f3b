// ctest-labels: cuda
// Mixtures in the trainer on a GPU, against the same runs on the CPU.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "dovetail/base/gpu.h"
#include "dovetail/moe/names.h"
#include "dovetail/train/resolve/load_config.h"
#include "dovetail/train/trainer.h"
#include "tests/comm/ranks.h"
#include "tests/train/balanced_runs.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::mixture_cuda_test {
namespace {

constexpr double kFp32 = 1e-3, kBf16 = 3e-2;  // a near tie of two experts may go another way

std::vector<double> losses(const test::TinyRun& run, const std::string& name) {
  std::vector<double> found;
  for (const auto& line : run.metrics(name)) found.push_back(line["loss"]);
  return found;
}

/// Trains `config` on both devices and compares the losses.
void expect_losses_of_the_cpu(const test::TinyRun& run, RunConfig config, double tolerance) {
  SCOPED_TRACE(config.run.name);
  const std::string name = config.run.name;
  for (const std::string device : {"cpu", "cuda"}) {
    config.run.name = fmt::format("{}-{}", name, device);
    config.run.folder = run.file(config.run.name, "").parent_path().string();
    config.run.device = device;
    test::train_alone(config);
  }
  const std::vector<double> expected = losses(run, name + "-cpu");
  EXPECT_EQ(expected.size(), static_cast<size_t>(config.train.steps));
  EXPECT_THAT(losses(run, name + "-cuda"),
              ::testing::Pointwise(::testing::DoubleNear(tolerance), expected));
}

/// A mixture whose widths fit `torch._grouped_mm`.
RunConfig mixture(const test::TinyRun& run, const std::string& name) {
  RunConfig config = run.config(name);
  config.train.micro_batch = 2;
  config.eval.every_steps = 6;
  config.model.moe.experts = 4;
  config.model.moe.k = 2;
  config.model.moe.ffn_width = 64;
  return config;
}

TEST(MixtureCuda, EachRouterTrainsToTheLossesOfTheCpu) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  for (const std::string_view router : moe::kRouterNames) {
    for (const std::string recipe : {"fp32", "bf16"}) {
      RunConfig config = mixture(run, fmt::format("{}-{}", router, recipe));
      config.model.moe.router = router;
      if (router == "base" || router == "hash") config.model.moe.k = 1;
      config.precision.recipe = recipe;
      expect_losses_of_the_cpu(run, config, recipe == "fp32" ? kFp32 : kBf16);
    }
  }
}

TEST(MixtureCuda, EachOptionTrainsToTheLossesOfTheCpu) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  const auto with = [&](const std::string& name, auto change) {
    RunConfig config = mixture(run, name);
    change(config);
    expect_losses_of_the_cpu(run, config, kFp32);
  };
  with("drop-position", [](auto& c) { c.model.moe.drop = "position"; });
  with("drop-probability", [](auto& c) { c.model.moe.drop = "probability"; });
  with("padded", [](auto& c) {
    c.model.moe.drop = "position";
    c.model.moe.pad_to_capacity = true;
  });
  with("shared", [](auto& c) { c.model.moe.shared_experts = 1; });
  with("drawn", [](auto& c) { c.model.moe.second_expert = "random"; });
  with("biased", [](auto& c) {
    c.model.moe.score = "sigmoid";
    c.model.moe.bias_update_rate = 1e-3;
  });
  with("groups", [](auto& c) {
    c.model.moe.num_groups = 2;
    c.model.moe.top_groups = 1;
  });
  for (const std::string_view scope : moe::kLoadScopeNames)
    with(fmt::format("scope-{}", scope), [&](auto& c) { c.model.moe.load_scope = scope; });
  with("recomputed", [](auto& c) { c.train.checkpoint_activations = true; });
  with("with-biases", [](auto& c) {
    c.model.bias = true;
    c.model.activation = "gelu";
  });
}

TEST(MixtureCuda, EachRecipeTrainsToTheLossesOfTheCpu) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  for (const std::string recipe :
       {"mxfp8", "mxfp4_stochastic", "fp8_tensor", "e4m3_by_tensor", "fp8_block", "fp64"}) {
    RunConfig config = mixture(run, recipe);
    const mx::RecipeSection::OperandSection one = {.blocks = "tensor", .scale_mode = "float32"};
    config.precision.recipes = {
        {.name = "e4m3_by_tensor", .weight = one, .activation = one, .gradient = one}};
    config.model.width = 64;
    config.model.layers = 4;  // FP8 leaves one block at each end in high precision
    config.precision.recipe = recipe;
    expect_losses_of_the_cpu(run, config, recipe == "fp64" ? 1e-9 : 2 * kBf16);
  }
}

/// The configs of the repository at their own widths, on short text.
TEST(MixtureCuda, TheRepositorysConfigsTrainToTheLossesOfTheCpu) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  for (const char* name : {"deepseek", "gshard", "mixtral", "switch"}) {
    const RunConfig small = run.config(name);
    RunConfig config = load_run_config(std::filesystem::path(std::getenv("DOVETAIL_CONFIGS")) /
                                           "moe" / fmt::format("{}.toml", name),
                                       {"model.context=64"});
    config.run = small.run;
    config.data = small.data;
    config.precision = small.precision;
    config.checkpoint = small.checkpoint;
    config.log = small.log;
    config.train.steps = 20;
    config.train.batch = 4;
    config.schedule.warmup_steps = 5;
    config.eval.every_steps = 20;
    expect_losses_of_the_cpu(run, config, 10 * kFp32);
  }
}

/// The first run has no budget. All runs on the card number the rows of the experts by shapes.
TEST(MixtureCuda, ABudgetChangesNoLoss) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  for (const bool padded : {false, true}) {
    for (const std::string recipe : {"fp32", "bf16"}) {
      const auto losses_within = [&](const std::string& budget) {
        RunConfig config = mixture(
            run, fmt::format("{}-{}-{}", recipe, padded, budget.empty() ? "free" : "planned"));
        config.run.device = "cuda";
        config.precision.recipe = recipe;
        config.memory.budget = budget;
        config.memory.solve_s = 1;
        config.train.batch = 128;  // activations exceed the workspaces of libraries
        config.train.micro_batch = 128;
        config.eval.every_steps = 0;
        if (padded) {
          config.model.moe.drop = "position";
          config.model.moe.pad_to_capacity = true;
        }
        test::train_alone(config);
        return losses(run, config.run.name);
      };
      const std::vector<double> expected = losses_within("");  // first: it makes the workspaces
      EXPECT_EQ(expected.size(), 12u);
      EXPECT_THAT(
          losses_within("0.9x"),
          ::testing::Pointwise(::testing::DoubleNear(recipe == "fp32" ? 1e-4 : 2e-3), expected))
          << recipe << (padded ? ", padded" : "");
    }
  }
}

/// Ranks that share a card exchange tokens through Gloo.
TEST(MixtureCuda, ExpertsOverRanksTrainToTheLossesOfOneRank) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  const auto losses_of = [&](int ranks, const std::string& name, int64_t overlap, int64_t r) {
    RunConfig config = mixture(run, name);
    config.run.device = "cuda";
    config.model.moe.load_scope = "sequence";  // as on one rank
    config.parallel.expert = ranks;
    config.parallel.overlap = overlap;
    config.parallel.r = r;
    expect_all_succeed(ranks, [&](std::shared_ptr<comm::Group> group) {
      train(config, std::move(group), {.quiet = true});
    });
    return losses(run, name);
  };
  const std::vector<double> expected = losses_of(1, "one", 1, 1);
  EXPECT_EQ(expected.size(), 12u);
  for (const auto& [name, overlap, r] :
       {std::tuple{"two", 1, 1}, {"overlapped", 2, 1}, {"r0", 1, 0}})
    EXPECT_THAT(losses_of(2, name, overlap, r),
                ::testing::Pointwise(::testing::DoubleNear(kFp32), expected))
        << name;
}

TEST(MixtureCuda, AStepSharedWithCoresHasTheLossesOfTheCard) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  RunConfig config = mixture(run, "card");
  config.run.threads = 0;
  config.train.batch = 8;
  config.train.micro_batch = 1;
  config.run.device = "cuda";
  test::train_alone(config);
  config = test::with_shares(config, {6, 2});
  config.run.device = "cuda:0,cpu:2";
  config.run.name = "shared";
  config.run.folder = run.file("shared", "").parent_path().string();
  test::train_alone(config);
  EXPECT_THAT(losses(run, "shared"),
              ::testing::Pointwise(::testing::DoubleNear(kFp32), losses(run, "card")));
}

}  // namespace
}  // namespace dovetail::train::mixture_cuda_test
