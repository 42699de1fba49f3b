// ctest-labels: threads
// Shares that follow how fast the ranks are, and what cannot be shared.
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <sstream>
#include <thread>

#include "dovetail/base/error.h"
#include "dovetail/train/ranks/batch_shares.h"
#include "dovetail/train/resolve/load_config.h"
#include "tests/train/balanced_runs.h"

namespace dovetail::test::balance_auto_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Every operation called `name` takes `sleep_ms` longer on this thread.
struct SlowOperation {
  const char* name = nullptr;
  double sleep_ms = 0;
};
thread_local SlowOperation t_slow;

std::unique_ptr<at::ObserverContext> sleep_in(const at::RecordFunction& function) {
  if (t_slow.name != nullptr && std::strcmp(function.name(), t_slow.name) == 0)
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(t_slow.sleep_ms));
  return nullptr;
}

void slow_this_thread(const char* operation, double ms) {
  t_slow = {operation, ms};
  at::addThreadLocalCallback(
      at::RecordFunctionCallback(sleep_in).scopes({at::RecordScope::FUNCTION}));
}

std::vector<nlohmann::json> lines(const std::filesystem::path& file) {
  std::vector<nlohmann::json> found;
  std::istringstream in(read_file(file.string()));
  for (std::string line; std::getline(in, line);) found.push_back(nlohmann::json::parse(line));
  return found;
}

Shares last_shares(const train::RunConfig& config) {
  return lines(config.folder() / "balance.jsonl").back()["shares"];
}

constexpr double kFast = 15,
                 kSlow = 45;  ///< ms of a micro-batch; its other work is far shorter

TEST(Balance, AutoGivesTheSlowRankLessAndGoesOnWithItsShares) {
  const TinyRun run;
  const auto slow_second = [](int rank) {
    slow_this_thread("aten::masked_fill", rank == 1 ? kSlow : kFast);
  };
  train::RunConfig config = gpt(run, "auto", 7);
  config.balance.mode = "auto";
  config.schedule.decay = "constant";
  train_on(2, config, slow_second);
  const auto first = lines(run.file("auto", "balance.jsonl"));
  EXPECT_EQ(first.front()["step"], 1);
  EXPECT_EQ(first.front()["shares"].get<Shares>(), (Shares{4, 4}));
  EXPECT_EQ(first.back()["shares"].get<Shares>(), (Shares{6, 2}));
  EXPECT_GT(first.back()["rank_ms"][1], first.back()["rank_ms"][0]);

  // Resumes with the previous shares; then the other rank is the slow one.
  config.train.steps = 16;
  const io::Snapshot end = train_on(2, config, [](int rank) {
    slow_this_thread("aten::masked_fill", rank == 0 ? kSlow : kFast);
  });
  const auto all = lines(run.file("auto", "balance.jsonl"));
  ASSERT_GT(all.size(), first.size() + 1);
  EXPECT_EQ(all[first.size()]["step"], 8);
  EXPECT_EQ(all[first.size()]["shares"].get<Shares>(), (Shares{6, 2}));
  EXPECT_EQ(all.back()["shares"].get<Shares>(), (Shares{2, 6}));
  EXPECT_THAT(run.read("auto", "report.html"), HasSubstr("Shares of the ranks"));

  train::RunConfig alone = gpt(run, "alone", 16);
  alone.schedule.decay = "constant";
  EXPECT_LE(distance(train_on(1, alone), end, is_anything), 1e-4);
  EXPECT_NEAR(run.metrics("auto").back()["loss"].get<double>(),
              run.metrics("alone").back()["loss"].get<double>(), 1e-4);
}

TEST(Balance, AutoFollowsARankThatSlowsDown) {
  const TinyRun run;
  train::RunConfig config = gpt(run, "auto", 14);
  config.balance.mode = "auto";
  static thread_local int calls;
  const auto later =
      [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    // Starts at its 25th micro-batch, in step 7 with 4 micro-batches per step.
    if (std::strcmp(function.name(), "aten::masked_fill") == 0)
      std::this_thread::sleep_for(
          std::chrono::duration<double, std::milli>(++calls > 24 ? kSlow : kFast));
    return nullptr;
  };
  train_on(2, config, [&](int rank) {
    calls = 0;
    if (rank == 0) slow_this_thread("aten::masked_fill", kFast);
    if (rank == 1)
      at::addThreadLocalCallback(
          at::RecordFunctionCallback(+later).scopes({at::RecordScope::FUNCTION}));
  });
  const auto all = lines(run.file("auto", "balance.jsonl"));
  ASSERT_GE(all.size(), 2U);
  EXPECT_GT(all[1]["step"], 7) << "moved while both were as fast";
  EXPECT_EQ(last_shares(config), (Shares{6, 2}));
}

TEST(Balance, AutoOfARecommenderGivesTheSlowRankLess) {
  const Clicks data;
  train::RunConfig config = dlrm(data, "auto", 9);
  config.balance.mode = "auto";
  const io::Snapshot got = train_on(2, config, [](int rank) {
    slow_this_thread("aten::binary_cross_entropy_with_logits", rank == 0 ? kSlow : kFast);
  });
  EXPECT_EQ(last_shares(config), (Shares{2, 6}));
  EXPECT_LE(distance(train_on(1, dlrm(data, "one", 9)), got, is_anything), 1e-4);
}

TEST(Balance, SaysWhatItCannotShare) {
  const TinyRun run;
  const auto refused = [&](const std::function<void(train::RunConfig&)>& change,
                           const std::string& why) {
    train::RunConfig config = gpt(run, "refused", 4);
    config.balance.mode = "auto";
    change(config);
    EXPECT_THAT([&] { train::check_balance(config); }, ThrowsMessage<UserError>(HasSubstr(why)));
  };
  refused([](train::RunConfig& c) { c.balance = {.mode = "off", .shares = {4, 4}}; },
          "do nothing with balance.mode = \"off\"");
  refused([](train::RunConfig& c) { c.balance = {.mode = "off", .gain = 0.5}; },
          "do nothing with balance.mode = \"off\"");
  refused([](train::RunConfig& c) { c.train.micro_batch = 0; },
          "train.micro_batch = 0 leaves the size open");
  refused([](train::RunConfig& c) { c.train.micro_batch = train::TrainSection::kAuto; },
          "train.micro_batch = \"auto\" leaves the size open");
  refused([](train::RunConfig& c) { c.train.micro_batch = 3; },
          "not a multiple of train.micro_batch = 3");
  refused([](train::RunConfig& c) { c.balance.shares = {4, 4}; }, "which measures them");
  refused([](train::RunConfig& c) { c.parallel.expert = 2; }, "all wait for the slowest in each");
  refused([](train::RunConfig& c) { c.model.moe.load_scope = "global_batch"; },
          "would depend on the shares");
  refused([](train::RunConfig& c) { c.recommender.model = "dien"; },
          "Negatives are drawn among the samples of a rank");
  refused([](train::RunConfig& c) { c.balance = {.mode = "fixed"}; }, "needs balance.shares");
  refused([](train::RunConfig& c) { c.balance = {.mode = "fixed", .shares = {4, 5}}; },
          "are 9 micro-batches");
  refused([](train::RunConfig& c) { c.balance = {.mode = "fixed", .shares = {4, 4}, .gain = 0.1}; },
          "whose shares do not move");

  train::RunConfig config = with_shares(gpt(run, "ranks", 4), {4, 4});
  EXPECT_THAT([&] { train::BatchShares(config, 3); },
              ThrowsMessage<UserError>(HasSubstr("are of 2 ranks, but the job has 3")));
  config.balance = {.mode = "auto"};
  EXPECT_THAT([&] { train::BatchShares(config, 1); },
              ThrowsMessage<UserError>(HasSubstr("the job has one")));
  EXPECT_THAT([&] { train::BatchShares(config, 9); },
              ThrowsMessage<UserError>(HasSubstr("without a micro-batch")));
}

TEST(Balance, ARankWithoutAMicroBatchIsRefusedWhereItIsWritten) {
  const TinyRun run;
  const std::filesystem::path file = run.file("", "run.toml");
  write_file_atomically(
      file, "[train]\nbatch = 16\nmicro_batch = 2\n[balance]\nmode = \"fixed\"\nshares = [8, 0]\n");
  try {
    train::load_run_config(file, {});
    FAIL() << "taken";
  } catch (const UserError& error) {
    EXPECT_THAT(describe_error(error),
                AllOf(HasSubstr("run.toml:6:"), HasSubstr("balance.shares[1] = 0")));
  }
}

TEST(Balance, SharesOfACheckpointAreKeptWhereTheyFit) {
  const TinyRun run;
  train::RunConfig config = gpt(run, "kept", 4);
  config.balance.mode = "auto";
  EXPECT_THAT(train::BatchShares(config, 2, {7, 1}).micro_batches(), ElementsAre(7, 1));
  EXPECT_THAT(train::BatchShares(config, 2, {7, 2}).micro_batches(), ElementsAre(4, 4));
  EXPECT_THAT(train::BatchShares(config, 3, {7, 1}).micro_batches(), ElementsAre(2, 3, 3));
  const train::BatchShares shares(config, 2, {7, 1});
  EXPECT_EQ(shares.range(0).begin, 0);
  EXPECT_EQ(shares.range(0).end, 14);
  EXPECT_EQ(shares.range(1).begin, 14);
  EXPECT_EQ(shares.range(1).end, 16);
  EXPECT_EQ(shares.maximum_samples(), 14);
}

}  // namespace
}  // namespace dovetail::test::balance_auto_test
