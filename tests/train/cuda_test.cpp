// ctest-labels: cuda
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "dovetail/base/gpu.h"
#include "dovetail/mx/native.h"
#include "dovetail/ops/simd_level.h"
#include "dovetail/train/trainer.h"
#include "tests/comm/ranks.h"
#include "tests/train/balanced_runs.h"
#include "tests/train/slow_micro_batches.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::cuda_test {
namespace {

TEST(Cuda, TrainsToTheLossOfTheCpu) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  for (const char* const norm : {"rmsnorm", "layernorm"}) {
    for (const char* const activation : {"gelu", "swiglu", "relu2"}) {
      const auto losses_on = [&](const std::string& device) {
        const std::string name = fmt::format("{}-{}-{}", norm, activation, device);
        RunConfig config = run.config(name);
        config.run.device = device;
        config.model.norm = norm;
        config.model.activation = activation;
        train(config, comm::world_from_environment(), {.quiet = true});
        std::vector<double> losses;
        for (const auto& line : run.metrics(name)) losses.push_back(line["loss"]);
        return losses;
      };
      const std::vector<double> expected = losses_on("cpu");
      EXPECT_EQ(expected.size(), 12u);
      EXPECT_THAT(losses_on("cuda"), ::testing::Pointwise(::testing::DoubleNear(1e-4), expected));
    }
  }
  EXPECT_GT(gpu_memory().peak_bytes, 0u);
}

TEST(Cuda, ABudgetChangesNoLoss) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  for (const char* const recipe : {"fp32", "bf16", "mxfp8"}) {
    const auto losses_within = [&](const std::string& budget) {
      const std::string name = fmt::format("{}-{}", recipe, budget.empty() ? "free" : "planned");
      RunConfig config = run.config(name);
      config.run.device = "cuda";
      config.precision.recipe = recipe;
      config.memory.budget = budget;
      config.memory.solve_s = 1;
      config.train.batch *= 32;  // activations exceed the workspaces of libraries
      train(config, comm::world_from_environment(), {.quiet = true});
      std::vector<double> losses;
      for (const auto& line : run.metrics(name)) losses.push_back(line["loss"]);
      return losses;
    };
    const std::vector<double> expected = losses_within("");  // first: it makes the workspaces
    EXPECT_EQ(expected.size(), 12u);
    EXPECT_EQ(losses_within("0.9x"), expected) << recipe;
  }
}

TEST(Cuda, AFullGpuEndsWithABatchThatFits) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  RunConfig config = run.config("full");
  config.run.device = "cuda";
  config.model.width = 1024;
  config.model.layers = 16;
  config.train.batch = 1 << 18;
  try {
    train(config, comm::world_from_environment(), {.quiet = true});
    ADD_FAILURE() << "the step fits";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("memory of cuda:0 is full"));
    EXPECT_THAT(error.help(), ::testing::HasSubstr("train.micro_batch = "));
  }
}

/// Losses of a run on the GPU. run.cuda_graph = "on" fails where the step cannot be recorded.
std::vector<double> losses_with_graph(const test::TinyRun& run, const std::string& name,
                                      const std::string& cuda_graph, const std::string& recipe,
                                      const moe::Config& experts = {}) {
  RunConfig config = run.config(name);
  config.model.moe = experts;
  config.run.device = "cuda";
  config.run.cuda_graph = cuda_graph;
  config.precision.recipe = recipe;
  config.train.micro_batch = 2;
  config.eval.every_steps = 4;  // validation between replays
  if (recipe == "mxfp8")
    config.log.quantization_every = 5;  // also steps that do not run as a graph
  train(config, comm::world_from_environment(), {.quiet = true});
  std::vector<double> losses;
  for (const auto& line : run.metrics(name)) losses.push_back(line["loss"]);
  return losses;
}

TEST(Cuda, AGraphTrainsToTheLossesOfItsOperations) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  for (const std::string recipe : {"fp32", "bf16", "mxfp8", "fp8_tensor_delayed"}) {
    const std::vector<double> expected = losses_with_graph(run, "eager-" + recipe, "off", recipe);
    EXPECT_EQ(expected.size(), 12u);
    EXPECT_THAT(
        losses_with_graph(run, "graph-" + recipe, "on", recipe),
        ::testing::Pointwise(::testing::DoubleNear(recipe == "fp32" ? 1e-5 : 1e-3), expected))
        << recipe;
  }
}

/// The experts' sizes are on the host in the first run, and on the GPU in the others.
TEST(Cuda, AGraphOfAMixtureTrainsToTheLossesOfItsOperations) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  if (const int major = mx::native_device(at::kCUDA).major; major != 9 && major != 10)
    GTEST_SKIP() << "torch._grouped_mm has no kernels for this GPU";
  const test::TinyRun run;
  const std::map<std::string, moe::Config> mixtures = {
      {"plain", {.experts = 4}},
      {"padded", {.experts = 4, .drop = "position", .pad_to_capacity = true}},
      {"biased", {.experts = 4, .score = "sigmoid", .bias_update_rate = 1e-3}}};
  for (const auto& [name, experts] : mixtures) {
    ops::set_disabled_kernels("grouped_mm");
    const std::vector<double> expected =
        losses_with_graph(run, name + "-host", "off", "bf16", experts);
    ops::set_disabled_kernels("");
    EXPECT_EQ(expected.size(), 12u);
    for (const std::string graph : {"off", "on"})
      EXPECT_THAT(losses_with_graph(run, name + "-" + graph, graph, "bf16", experts),
                  ::testing::Pointwise(::testing::DoubleNear(2e-3), expected))
          << name << ", graph " << graph;
  }
}

TEST(Cuda, TwoRunsOfOneSeedHaveTheSameBits) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  EXPECT_EQ(losses_with_graph(run, "one", "auto", "bf16"),
            losses_with_graph(run, "two", "auto", "bf16"));
}

/// Steps of a resumed process run without a graph at first.
TEST(Cuda, AResumedRunHasTheBitsOfAWholeOne) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  for (const std::string recipe : {"fp32", "bf16", "mxfp8", "fp8_tensor_delayed"}) {
    const auto prepared = [&](const std::string& name) {
      RunConfig config = run.config(recipe + name);
      config.run.device = "cuda";
      config.precision.recipe = recipe;
      config.train.micro_batch = 2;
      return config;
    };
    test::train_alone(prepared("whole"));
    RunConfig config = prepared("parts");
    config.train.time_limit_s = 1e-9;  // each process makes one step
    for (int64_t step = 1; step <= 3; ++step) test::train_alone(config);
    config.train.time_limit_s = 0;
    test::train_alone(config);
    EXPECT_EQ(run.read(recipe + "parts", "metrics.jsonl"),
              run.read(recipe + "whole", "metrics.jsonl"))
        << recipe;
  }
}

/// Ranks that share a GPU exchange their gradients through Gloo.
TEST(Cuda, TwoRanksOnOneCardTrainToTheLossOfOne) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  const auto losses_of = [&](int ranks, const std::string& shard) {
    RunConfig config = run.config(fmt::format("ranks-{}-{}", ranks, shard));
    config.run.device = "cuda";
    config.parallel.shard = shard;
    config.train.bucket_bytes = 65536;  // several buckets a step
    expect_all_succeed(ranks, [&](std::shared_ptr<comm::Group> group) {
      train(config, std::move(group), {.quiet = true});
    });
    std::vector<double> losses;
    for (const auto& line : run.metrics(config.run.name)) losses.push_back(line["loss"]);
    return losses;
  };
  const std::vector<double> expected = losses_of(1, "none");
  EXPECT_EQ(expected.size(), 12u);
  for (const std::string shard : {"none", "optimizer", "gradients"})
    EXPECT_THAT(losses_of(2, shard), ::testing::Pointwise(::testing::DoubleNear(1e-5), expected))
        << shard;
}

/// Config of a run whose steps a GPU and CPU threads share, or that the GPU trains alone.
RunConfig beside_cores(const test::TinyRun& run, const std::string& name,
                       const std::string& device) {
  RunConfig config = test::gpt(run, name, 12);
  config.run.device = device;
  config.run.threads = 0;
  config.model.width = 256;
  config.model.context = 64;
  return config;
}

/// Returns the norm of the difference of two gradients over the norm of the first. Each gradient is
/// one vector with the first moments of all parameters: (1 - beta1) times the gradient of one step.
double gradient_distance(const io::Snapshot& want, const io::Snapshot& got) {
  double squares = 0, of_difference = 0;
  for (const auto& [name, tensor] : want.tensors) {
    if (!test::is_gradient(name)) continue;
    const at::Tensor a = tensor.to(at::kDouble), b = got.tensors.at(name).to(at::kDouble);
    squares += a.square().sum().item<double>();
    of_difference += (a - b).square().sum().item<double>();
  }
  EXPECT_GT(squares, 0);
  return std::sqrt(of_difference / squares);
}

TEST(Cuda, AStepSharedWithCoresHasTheGradientOfTheCard) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  for (const test::Shares& shares : {test::Shares{7, 1}, {4, 4}, {1, 7}, {3, 2, 3}}) {
    const std::string list = shares.size() == 2 ? "cuda:0,cpu:2" : "cuda:0,cpu:1,cpu:2";
    const auto after = [&](int64_t steps, const std::string& device) {
      RunConfig config =
          beside_cores(run, fmt::format("{}-{}-{}", device.size(), shares[0], steps), device);
      config.train.steps = steps;
      if (device != "cuda") config = test::with_shares(config, shares);
      return test::train_here(config);
    };
    EXPECT_LE(gradient_distance(after(1, "cuda"), after(1, list)), 1e-6) << shares[0];
    EXPECT_LE(test::distance(after(12, "cuda"), after(12, list), test::is_anything), 1e-4)
        << shares[0];
  }
}

TEST(Cuda, ThrottledCoresGetTheirShareOrAreLeftOut) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  const auto losses = [&](const std::string& name) {
    std::vector<double> found;
    for (const auto& line : run.metrics(name)) found.push_back(line["loss"]);
    return found;
  };
  test::train_here(beside_cores(run, "alone", "cuda"));
  // Waits of a micro-batch in ms on the card's host thread and on the cores, and the cores' share.
  for (const auto& [card_ms, cores_ms, share] :
       {std::tuple{30.0, 60.0, 3}, {30.0, 30.0, 4}, {1.0, 300.0, 0}}) {
    const std::string name = fmt::format("cores-{}-{}", card_ms, cores_ms);
    RunConfig config = beside_cores(run, name, "cuda:0,cpu:2");
    config.balance.mode = "auto";
    const test::SlowMicroBatches slow(card_ms, cores_ms);
    test::train_here(config);
    const std::string lines = run.read(name, "balance.jsonl");
    const auto last = nlohmann::json::parse(
        lines.substr(lines.rfind('\n', lines.size() - 2) + 1));  // npos + 1 is the first line
    EXPECT_NEAR(last["shares"][1].get<double>(), share, share == 0 ? 0 : 1) << name;
    EXPECT_EQ(last.contains("left_out"), share == 0) << name;
    EXPECT_THAT(losses(name), ::testing::Pointwise(::testing::DoubleNear(1e-4), losses("alone")));
  }
}

TEST(Cuda, ListsOfAbsentGpusAreRefused) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const test::TinyRun run;
  RunConfig config = beside_cores(run, "absent", "cuda:99,cpu:1");
  config.balance.mode = "auto";
  EXPECT_THAT([&] { test::train_alone(config); },
              ::testing::ThrowsMessage<UserError>(::testing::HasSubstr("this machine has")));
}

}  // namespace
}  // namespace dovetail::train::cuda_test
