// ctest-labels: threads
// Executors of one process that share the steps of a GPT.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <sstream>

#include "dovetail/base/error.h"
#include "dovetail/train/gpt/step.h"
#include "dovetail/train/ranks/executor_log.h"
#include "dovetail/train/resolve/load_config.h"
#include "dovetail/train/resolve/resolve_executors.h"
#include "tests/train/balanced_runs.h"
#include "tests/train/slow_micro_batches.h"

namespace dovetail::test::executors_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Model with a step of 8 micro-batches, alone or shared. `shares`: micro-batches of the executors.
struct Trained {
  std::shared_ptr<models::GPT> model;
  std::optional<train::Optimizer> optimizer;
  std::optional<train::StepSharing> sharing;
  std::optional<train::TrainStep> step;

  Trained(at::ScalarType dtype, bool tied, const Shares& shares, const moe::Config& experts = {}) {
    const models::ModelConfig config = models::resolve_model_config(
        {.layers = 2, .width = 32, .heads = 2, .context = 8, .tied = tied, .moe = experts}, 50);
    const auto made = [&] {
      auto gpt = std::make_shared<models::GPT>(config);
      initialize(*gpt, 3);
      return gpt;
    };
    model = made();
    optimizer.emplace(*model, train::OptimizerSection{.lr = 1e-3});
    model->set_compute_dtype(dtype);
    optimizer->bind(*model);
    if (!shares.empty()) {
      std::vector<std::unique_ptr<train::StepExecutor>> others;
      for (size_t e = 1; e < shares.size(); ++e) {
        auto replica = std::make_shared<models::GPT>(config);
        replica->set_compute_dtype(dtype);
        others.push_back(std::make_unique<train::StepExecutor>(
            std::move(replica), optimizer->parameters(), model->buffers(),
            train::StepExecutor::Options{.threads = 1, .micro_batch = 2}));
      }
      sharing.emplace(std::move(others), shares, 2, c10::kCPU, moe::layers_of(*model));
    }
    step.emplace(model, *optimizer, comm::local_groups(1)[0],
                 train::StepOptions{
                     .micro_batch = 2, .clip = 1.0, .sharing = sharing ? &*sharing : nullptr});
  }

  train::StepOutcome run(int64_t seed, double lr = 1e-3) {
    torch::manual_seed(seed);
    const at::Tensor tokens = torch::randint(0, 50, {16, 9}, torch::kLong);
    tokens.slice(0, 5, 6).slice(1, 4).fill_(-100);  // micro-batches of unequal weight
    return step->run(tokens, lr, false, {.seed = static_cast<uint64_t>(seed)});
  }
};

void expect_same_bits(const Trained& want, const Trained& got, const std::string& of) {
  for (size_t i = 0; i < want.step->gradients().size(); ++i)
    EXPECT_TRUE(torch::equal(want.step->gradients().gradient(i), got.step->gradients().gradient(i)))
        << of << ", gradient " << i;
  const auto left = want.optimizer->tensors(), right = got.optimizer->tensors();
  for (const auto& [name, tensor] : left)
    EXPECT_TRUE(torch::equal(tensor, right.at(name))) << of << ", " << name;
}

TEST(Executors, AnySharesHaveTheBitsOfTheOwnerAlone) {
  for (const auto& [dtype, tied] : {std::pair{at::kFloat, true},
                                    {at::kFloat, false},
                                    {at::kDouble, true},
                                    {at::kBFloat16, true}}) {
    for (const Shares& shares : {Shares{5, 3}, {1, 7}, {2, 1, 5}}) {
      Trained alone(dtype, tied, {}), shared(dtype, tied, shares);
      const int64_t steps = dtype == at::kFloat ? 20 : 5;
      for (int64_t step = 1; step <= steps; ++step) {
        const train::StepOutcome want = alone.run(step), got = shared.run(step);
        ASSERT_EQ(got.loss, want.loss) << step;
        ASSERT_EQ(got.grad_norm, want.grad_norm) << step;
        EXPECT_EQ(got.tokens, want.tokens);
      }
      expect_same_bits(alone, shared, fmt::format("{}, {}", at::toString(dtype), shares.size()));
    }
  }
}

/// Draws go by a token's index in the step. Loads are sums over executors. Biases of routers are
/// copied with the weights.
TEST(Executors, ShareTheStepsOfAMixture) {
  const auto mixture = [](auto change) {
    moe::Config config{.experts = 6, .load_scope = "sequence", .load_loss = 0.01};
    change(config);
    return config;
  };
  const std::vector<moe::Config> configs = {
      mixture(
          [](moe::Config& config) { config.score = "sigmoid", config.bias_update_rate = 0.01; }),
      mixture([](moe::Config& config) { config.second_expert = "random"; }),
      mixture([](moe::Config& config) {
        config.drop = "position", config.capacity_factor = 1, config.pad_to_capacity = true;
      }),
      mixture([](moe::Config& config) {
        config.router = "noisy_top_k", config.load_loss = 0, config.smooth_load_loss = 0.01;
      })};
  for (size_t c = 0; c < configs.size(); ++c) {
    Trained alone(at::kFloat, true, {}, configs[c]),
        shared(at::kFloat, true, {3, 4, 1}, configs[c]);
    for (int64_t step = 1; step <= 10; ++step) {
      std::vector<train::StepOutcome> made;
      std::vector<std::vector<int64_t>> loads;
      for (Trained* const trained : {&alone, &shared}) {
        const auto layers = moe::layers_of(*trained->model);
        for (const auto& [name, layer] : layers) layer->reset_load();
        made.push_back(trained->run(step));
        loads.emplace_back();
        for (const auto& [name, layer] : layers) {
          const moe::Layer::Load load = layer->load();
          loads.back().insert(loads.back().end(), load.count.begin(), load.count.end());
          loads.back().push_back(load.dropped);
          if (layer->router().bias.defined())
            layer->router().update_bias(torch::tensor(load.count, torch::kDouble));
        }
      }
      ASSERT_EQ(made[1].loss, made[0].loss) << c << ", step " << step;
      ASSERT_EQ(made[1].router_loss, made[0].router_loss) << c << ", step " << step;
      ASSERT_EQ(loads[1], loads[0]) << c << ", step " << step;
    }
    expect_same_bits(alone, shared, fmt::format("mixture {}", c));
  }
}

TEST(Executors, MovingSharesAndLeavingOutChangesNoBit) {
  Trained alone(at::kFloat, true, {}), shared(at::kFloat, true, {3, 3, 2});
  const std::vector<Shares> course = {{3, 3, 2}, {1, 6, 1}, {4, 0, 4}, {7, 0, 1}, {8, 0, 0}};
  for (size_t i = 0; i < course.size(); ++i) {
    shared.sharing->set_shares(course[i]);
    for (int64_t step = 0; step < 2; ++step) {
      const int64_t seed = static_cast<int64_t>(2 * i) + step;
      EXPECT_EQ(shared.run(seed).loss, alone.run(seed).loss);
    }
    expect_same_bits(alone, shared, fmt::format("shares {}", i));
    EXPECT_EQ(shared.sharing->shared(), i + 1 < course.size());
  }
}

TEST(Executors, AStepThatIsNotFiniteIsSkippedAndItsWeightsAreNotCopiedAgain) {
  Trained alone(at::kFloat, true, {}), shared(at::kFloat, true, {4, 4});
  for (Trained* const trained : {&alone, &shared}) {
    EXPECT_FALSE(trained->run(1, 1e38).skipped);  // an update beyond the range of float32
    EXPECT_TRUE(trained->run(2).skipped);
  }
  EXPECT_GT(shared.sharing->times()[1].start_s, 0);
  EXPECT_TRUE(shared.run(3).skipped);
  EXPECT_EQ(shared.sharing->times()[1].start_s, 0);
  EXPECT_EQ(shared.optimizer->updates(), 1);
}

TEST(Executors, AnErrorOfAnExecutorIsRethrown) {
  Trained shared(at::kFloat, true, {4, 4});
  at::Tensor tokens = torch::zeros({16, 9}, torch::kLong);
  tokens.slice(0, 14).fill_(77);  // in the last micro-batch, beyond the vocabulary
  EXPECT_THAT([&] { shared.step->run(tokens, 1e-3, false); },
              ThrowsMessage<UserError>(HasSubstr("77")));
  EXPECT_GT(shared.run(1).loss, 0);
}

/// Config of a run that executors of one thread each share.
train::RunConfig shared_gpt(const TinyRun& run, const std::string& name, int64_t steps,
                            const std::string& device = "cpu:1,cpu:1") {
  train::RunConfig config = gpt(run, name, steps);
  config.run.device = device;
  config.run.threads = 0;
  config.balance.mode = "auto";
  config.schedule.decay = "constant";
  return config;
}

train::RunConfig alone_gpt(const TinyRun& run, const std::string& name, int64_t steps) {
  train::RunConfig config = gpt(run, name, steps);
  config.schedule.decay = "constant";
  return config;
}

std::vector<nlohmann::json> lines(const TinyRun& run, const std::string& name,
                                  const std::string& file) {
  std::vector<nlohmann::json> found;
  std::istringstream in(run.read(name, file));
  for (std::string line; std::getline(in, line);) found.push_back(nlohmann::json::parse(line));
  return found;
}

std::vector<double> losses(const TinyRun& run, const std::string& name) {
  std::vector<double> found;
  for (const auto& line : run.metrics(name)) found.push_back(line["loss"]);
  return found;
}

TEST(Executors, ARunWithFixedSharesHasTheFilesOfARunAlone) {
  const TinyRun run;
  for (const char* const recipe : {"fp32", "fp64", "bf16"}) {
    const std::string shared = fmt::format("shared-{}", recipe),
                      alone = fmt::format("alone-{}", recipe);
    train::RunConfig config = with_shares(shared_gpt(run, shared, 20), {3, 5});
    config.precision.recipe = recipe;
    config.train.checkpoint_activations = true;
    config.eval.every_steps = 7;
    const io::Snapshot got = train_here(config);
    config = alone_gpt(run, alone, 20);
    config.precision.recipe = recipe;
    config.train.checkpoint_activations = true;
    config.eval.every_steps = 7;
    const io::Snapshot want = train_here(config);
    EXPECT_EQ(run.read(shared, "metrics.jsonl"), run.read(alone, "metrics.jsonl")) << recipe;
    EXPECT_EQ(distance(want, got, is_anything), 0) << recipe;
    const nlohmann::json timings = lines(run, shared, "timings.jsonl").back();
    EXPECT_EQ(timings["executors"]["cpu:1"]["micro_batches"], 3);
    EXPECT_EQ(timings["executors"]["cpu:1 (1)"]["micro_batches"], 5);
    EXPECT_GT(timings["executors"]["cpu:1 (1)"]["tokens_per_s"], 0);
    EXPECT_FALSE(timings.contains("utilization")) << "of one device's peak";
    EXPECT_FALSE(lines(run, alone, "timings.jsonl").back().contains("executors"));
    const auto balance = lines(run, shared, "balance.jsonl");
    ASSERT_EQ(balance.size(), 1U);
    EXPECT_EQ(balance[0]["step"], 1);
    EXPECT_EQ(balance[0]["executors"], (std::vector<std::string>{"cpu:1", "cpu:1 (1)"}));
    EXPECT_EQ(balance[0]["shares"].get<Shares>(), (Shares{3, 5}));
  }
}

constexpr double kFast = 40, kSlow = 120;  ///< ms of a micro-batch; its other work is far shorter

TEST(Executors, AThrottledExecutorGetsItsShareAndKeepsItWhenResumed) {
  const TinyRun run;
  {
    const SlowMicroBatches slow(kFast, kSlow);
    train_here(shared_gpt(run, "auto", 6));
  }
  const auto first = lines(run, "auto", "balance.jsonl");
  EXPECT_EQ(first.front()["step"], 1);
  EXPECT_EQ(first.front()["shares"].get<Shares>(), (Shares{7, 1}));
  ASSERT_GE(first.size(), 2U);
  EXPECT_EQ(first[1]["step"], 4);
  EXPECT_GT(first[1]["executor_ms"][1], first[1]["executor_ms"][0]);
  EXPECT_LT(first[1]["compute_ms"], first[1]["before_ms"]);
  // A third of the speed: 2 of 8, and one more or less on a busy machine.
  const auto shares = first.back()["shares"].get<Shares>();
  EXPECT_NEAR(shares[1], 2, 1);

  train::RunConfig config = shared_gpt(run, "auto", 14);
  io::Snapshot end;
  {
    const SlowMicroBatches slow(kSlow, kFast);
    end = train_here(config);
  }
  const auto all = lines(run, "auto", "balance.jsonl");
  ASSERT_GT(all.size(), first.size() + 1);
  EXPECT_EQ(all[first.size()]["step"], 7);
  EXPECT_EQ(all[first.size()]["shares"].get<Shares>(), shares);
  EXPECT_NEAR(all.back()["shares"][0].get<int64_t>(), 2, 1);
  EXPECT_THAT(run.read("auto", "report.html"),
              AllOf(HasSubstr("Shares of the executors"), HasSubstr("Throughput of the executors"),
                    HasSubstr("micro-batches of the executors")));

  EXPECT_EQ(distance(train_here(alone_gpt(run, "alone", 14)), end, is_anything), 0);
  EXPECT_EQ(losses(run, "auto"), losses(run, "alone"));
}

TEST(Executors, AnExecutorThatDoesNotPayIsLeftOut) {
  const TinyRun run;
  {
    const SlowMicroBatches slow(1, 400);  // one micro-batch there takes longer than all here
    train_here(shared_gpt(run, "left", 6));
  }
  const auto balance = lines(run, "left", "balance.jsonl");
  ASSERT_EQ(balance.size(), 2U);
  EXPECT_EQ(balance.back()["step"], 4);
  EXPECT_EQ(balance.back()["shares"].get<Shares>(), (Shares{8, 0}));
  ASSERT_EQ(balance.back()["left_out"].size(), 1U);
  const nlohmann::json left_out = balance.back()["left_out"][0];
  EXPECT_EQ(left_out["executor"], "cpu:1 (1)");
  EXPECT_GT(left_out["with_ms"], left_out["without_ms"]);
  const auto timings = lines(run, "left", "timings.jsonl");
  EXPECT_TRUE(timings[2].contains("executors"));
  EXPECT_FALSE(timings[3].contains("executors"));
  EXPECT_THAT(run.read("left", "report.html"), HasSubstr("left out from step 4 on"));

  // A resumed run measures it again.
  train_here(shared_gpt(run, "left", 12));
  const nlohmann::json again = lines(run, "left", "balance.jsonl")[2];
  EXPECT_EQ(again["step"], 7);
  EXPECT_EQ(again["shares"].get<Shares>(), (Shares{7, 1}));
  train_here(alone_gpt(run, "alone", 12));
  EXPECT_EQ(losses(run, "left"), losses(run, "alone"));
}

TEST(Executors, TheLogSaysWhyAnExecutorIsLeftOut) {
  train::ExecutorLog log({"cuda:0", "cpu:8"}, 100, 0.05);
  EXPECT_EQ(log.summary(), "");
  const jobs::ExecutorShares::Move slower = {
      .from = {7, 1},
      .to = {8, 0},
      .rate_s = {0.01, 0.3},
      .from_s = 0.3,
      .to_s = 0.08,
      .left_out = {{.executor = 1, .with_s = 0.3, .without_s = 0.08, .rate_s = 0.3}}};
  EXPECT_THAT(
      log.words(4, slower),
      ElementsAre("balance: cpu:8 is left out from step 4 on: a step would take 0.3 s with it and "
                  "0.08 s without it. One micro-batch takes 0.3 s there and 0.01 s on cuda:0",
                  "balance: from step 4 on micro-batches of cuda:0, cpu:8: 7, 1 -> 8, 0; a step "
                  "computes for 0.08 s instead of 0.3 s"));
  jobs::ExecutorShares::Move little = slower;
  little.left_out[0].with_s = 0.0784;
  EXPECT_THAT(log.words(4, little)[0],
              HasSubstr("0.08 s without it, 2 % less, but balance.gain = 0.05. One micro-batch"));
  log.add({3, 1}, {{.compute_s = 0.03}, {.start_s = 0.1, .compute_s = 0.05, .add_s = 0.1}});
  log.add({4, 0}, {{.compute_s = 0.04}, {}});
  EXPECT_EQ(log.summary(),
            "executors: cuda:0 computed 87.5 % of the shared steps' samples at 10 k tok/s; cpu:8 "
            "computed 12.5 % of the shared steps' samples at 2.0 k tok/s");
}

TEST(Executors, SayWhatTheyCannotShare) {
  const TinyRun run;
  const auto refused = [&](const std::function<void(train::RunConfig&)>& change,
                           const std::string& why, const std::string& help = "") {
    train::RunConfig config = shared_gpt(run, "refused", 4);
    change(config);
    try {
      train::check_executors(config);
      ADD_FAILURE() << "not refused: " << why;
    } catch (const UserError& error) {
      EXPECT_THAT(describe_error(error),
                  AllOf(HasSubstr("run.device"), HasSubstr(why), HasSubstr(help)));
    }
  };
  const auto device = [](const char* text) {
    return [text](train::RunConfig& c) { c.run.device = text; };
  };
  train::check_executors(shared_gpt(run, "works", 4));
  train::check_executors(shared_gpt(run, "works", 4, "cuda:0,cpu:8,cpu:2"));
  refused(device("gpu"), "is no device", "cuda:0,cpu:8");
  refused(device("cpu,cuda"), "is no device", "cuda:0,cpu:8");
  refused(device("cpu:1,"), "is no list of executors", "threads");
  refused(device("cpu:0,cpu:1"), "is no list of executors", "threads");
  refused(device("cuda:0,tpu:1"), "is no list of executors", "threads");
  refused(device("cpu:4"), "names one executor", "run.threads");
  refused(device("cuda:1"), "names one executor", "CUDA_VISIBLE_DEVICES");
  refused(device("cuda:0,cuda:1"), "names 2 GPUs", "dovetail launch");
  refused(device("cpu:8,cuda:0"), "holds weights and optimizer", "\"cuda:0,cpu:8\"");
  refused([](train::RunConfig& c) { c.recommender.model = "dlrm"; }, "recommender.model = \"dlrm\"",
          "run.device = \"cpu\"");
  refused([](train::RunConfig& c) { c.vision.model = "vgg16"; }, "vision.model = \"vgg16\"",
          "run.device = \"cpu\"");
  refused(
      [](train::RunConfig& c) {
        c.model.moe.experts = 4;
        c.model.moe.load_scope = "global_batch";
      },
      "model.moe.load_scope = \"global_batch\"", "\"sequence\"");
  refused([](train::RunConfig& c) { c.balance.mode = "off"; }, "balance.mode = \"off\"",
          "train.micro_batch");
  refused([](train::RunConfig& c) { c.memory.budget = "1GiB"; }, "memory.budget = \"1GiB\"",
          "leave memory.budget out");
  refused([](train::RunConfig& c) { c.run.threads = 2; }, "run.threads = 2", "leave run.threads");
  refused([](train::RunConfig& c) { c.precision.recipe = "mxfp8"; }, "\"mxfp8\"", "\"bf16\"");
  refused([](train::RunConfig& c) { c.run.cuda_graph = "on"; }, "run.cuda_graph", "\"auto\"");
  refused([](train::RunConfig& c) { c.balance = {.mode = "fixed", .shares = {4, 2, 2}}; },
          "are of 3 executors");
  refused([](train::RunConfig& c) { c.train.micro_batch = 16; }, "without a micro-batch");

  const auto groups = comm::local_groups(2);
  EXPECT_THAT([&] { train::resolve_executors(shared_gpt(run, "ranks", 4), *groups[0]); },
              ThrowsMessage<UserError>(HasSubstr("the job has 2 ranks")));
}

TEST(Executors, ThreadsOfTheOwnerAreItsOwnOrWhatIsLeft) {
  const auto threads = [](const char* text, int cores) {
    return train::owner_threads(jobs::parse_executors(text), cores);
  };
  EXPECT_EQ(threads("cpu:3,cpu:1", 16), 3);
  EXPECT_EQ(threads("cuda:0,cpu:12", 16), 4);
  EXPECT_EQ(threads("cuda:0,cpu:16", 16), 1);
}

}  // namespace
}  // namespace dovetail::test::executors_test
