// ctest-labels: threads
// The law of data parallelism: the number of ranks changes the rounding and nothing else.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstdlib>
#include <mutex>

#include "dovetail/base/error.h"
#include "dovetail/comm/collective.h"
#include "dovetail/data/text/loader.h"
#include "dovetail/train/gpt/step.h"
#include "dovetail/train/trainer.h"
#include "tests/comm/ranks.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::ranks_test {
namespace {

/// Trains with `ranks` threads as ranks; the loss of the last step, equal on all of them.
double train_on_ranks(RunConfig config, int ranks) {
  std::mutex mutex;
  std::vector<double> losses;
  expect_all_succeed(ranks, [&](std::shared_ptr<comm::Group> group) {
    const TrainResult result = train(config, std::move(group), {.quiet = true});
    const std::scoped_lock lock(mutex);
    losses.push_back(result.loss);
  });
  for (const double loss : losses) EXPECT_EQ(loss, losses.front());
  return losses.empty() ? NAN : losses.front();
}

/// The loss after 50 steps, with several buckets a step.
double fifty_steps(int ranks, const char* precision) {
  const test::TinyRun run;
  RunConfig config = run.config();
  config.precision.recipe = precision;
  config.train.steps = 50;
  config.optimizer.lr = 1e-3;
  config.train.bucket_bytes = 65536;
  return train_on_ranks(config, ranks);
}

class Ranks : public ::testing::TestWithParam<int> {};

TEST_P(Ranks, LossInFP64IsThatOfOneRank) {
  static const double kAlone = fifty_steps(1, "fp64");
  EXPECT_NEAR(fifty_steps(GetParam(), "fp64"), kAlone, 1e-10);
}

TEST_P(Ranks, LossInFP32IsThatOfOneRankWithinRounding) {
  static const double kAlone = fifty_steps(1, "fp32");
  EXPECT_NEAR(fifty_steps(GetParam(), "fp32"), kAlone, 1e-4);
}

TEST_P(Ranks, TheSameRunTwiceHasTheSameBits) {
  const test::TinyRun run;
  for (const char* name : {"first", "second"}) {
    RunConfig config = run.config(name);
    config.train.steps = 6;
    config.train.micro_batch = 1;
    config.train.batch = 5;  // uneven shares
    config.eval.every_steps = 3;
    train_on_ranks(config, GetParam());
  }
  EXPECT_EQ(run.read("first", "metrics.jsonl"), run.read("second", "metrics.jsonl"));
}

INSTANTIATE_TEST_SUITE_P(Train, Ranks, ::testing::Values(2, 4));

models::ModelConfig small_model() {
  return models::resolve_model_config(
      {.layers = 2, .width = 48, .heads = 4, .kv_heads = 2, .context = 24, .tied = false}, 257);
}

/// Reduced gradients of a first step over `ranks`, and its norm.
std::vector<at::Tensor> first_gradients(int ranks, double& norm) {
  const at::Tensor tokens = [] {
    torch::manual_seed(3);
    return torch::randint(0, 257, {8, 25}, torch::kLong);
  }();
  std::mutex mutex;
  std::vector<at::Tensor> gradients;
  expect_all_succeed(ranks, [&](std::shared_ptr<comm::Group> group) {
    at::set_num_threads(1);
    const int rank = group->rank();
    auto model = std::make_shared<models::GPT>(small_model());
    initialize(*model, 1);
    Optimizer optimizer(*model, {});
    optimizer.bind(*model);
    TrainStep step(model, optimizer, group, {.micro_batch = 8, .bucket_bytes = 16384});
    const int64_t share = 8 / ranks;
    const StepOutcome outcome = step.run(tokens.narrow(0, rank * share, share), 1e-3, false);
    const std::scoped_lock lock(mutex);
    EXPECT_EQ(outcome.tokens, 8 * 24);
    if (rank != 0) return;
    norm = outcome.grad_norm;
    for (size_t i = 0; i < step.gradients().size(); ++i)
      gradients.push_back(step.gradients().gradient(i).clone());
  });
  return gradients;
}

TEST(FirstStep, GradientsInFP32AreThoseOfOneRank) {
  double norm_alone = 0;
  const auto alone = first_gradients(1, norm_alone);
  double squares = 0;
  for (const auto& g : alone) squares += g.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(norm_alone, std::sqrt(squares) / (8 * 24), 1e-9 * norm_alone);
  for (const int ranks : {2, 4}) {
    double norm = 0;
    const auto gradients = first_gradients(ranks, norm);
    ASSERT_EQ(gradients.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      const double distance = (gradients[i] - alone[i]).norm().item<double>();
      EXPECT_LE(distance, 1e-6 * alone[i].norm().item<double>())
          << "tensor " << i << ", " << ranks << " ranks";
    }
    EXPECT_NEAR(norm, norm_alone, 1e-6 * norm_alone);
  }
}

TEST(OnRankZero, EveryRankHearsOfAFailure) {
  const auto errors = run_ranks(3, [](std::shared_ptr<comm::Group> group) {
    comm::on_rank_zero(*group, "reading", [] { throw UserError("the file is gone"); });
  });
  EXPECT_EQ(errors[0], "the file is gone");
  for (const auto& error : {errors[1], errors[2]}) {
    EXPECT_NE(error.find("reading"), std::string::npos) << error;
    EXPECT_NE(error.find("the file is gone"), std::string::npos) << error;
  }
}

TEST(OnRankZero, MayTakeLongerThanTheGroupsTimeout) {
  if (std::getenv("DOVETAIL_ALL") == nullptr) GTEST_SKIP() << "takes 15 s; set DOVETAIL_ALL=1";
  const auto errors = run_ranks(2,
                                [](std::shared_ptr<comm::Group> group) {
                                  comm::on_rank_zero(*group, "sleeping", [] {
                                    std::this_thread::sleep_for(std::chrono::seconds(15));
                                  });
                                },
                                {.timeout_s = 10});
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace dovetail::train::ranks_test
