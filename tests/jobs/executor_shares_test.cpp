#include "dovetail/jobs/executor_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "dovetail/base/rng.h"

namespace dovetail::jobs::executor_shares_test {
namespace {

using Counts = std::vector<int64_t>;
using ::testing::ElementsAre;

/// Executor that takes start + rate * n seconds for n micro-batches, and add * n for the owner.
struct Speeds {
  double start, rate, add;
};

std::vector<ExecutorShares::Times> times_of(const std::vector<Speeds>& speeds,
                                            const Counts& shares) {
  std::vector<ExecutorShares::Times> times;
  for (size_t e = 0; e < speeds.size(); ++e) {
    const auto n = static_cast<double>(shares[e]);
    times.push_back({speeds[e].start, speeds[e].rate * n, speeds[e].add * n});
  }
  return times;
}

double step_s(const std::vector<Speeds>& speeds, const Counts& shares) {
  double most = 0, added = 0;
  for (size_t e = 0; e < speeds.size(); ++e) {
    const auto n = static_cast<double>(shares[e]);
    if (n > 0) most = std::max(most, speeds[e].start + speeds[e].rate * n);
    added += speeds[e].add * n;
  }
  return most + added;
}

/// Shortest step of all divisions in which the owner has at least one micro-batch.
double shortest(const std::vector<Speeds>& speeds, int64_t count) {
  double best = std::numeric_limits<double>::infinity();
  Counts shares(speeds.size(), 0);
  const std::function<void(size_t, int64_t)> place = [&](size_t e, int64_t left) {
    if (e + 1 == speeds.size()) {
      shares[e] = left;
      if (shares[0] > 0) best = std::min(best, step_s(speeds, shares));
      return;
    }
    for (shares[e] = 0; shares[e] <= left; ++shares[e]) place(e + 1, left - shares[e]);
  };
  place(0, count);
  return best;
}

/// Records steps until the shares no longer change.
Counts settle(ExecutorShares& shares, const std::vector<Speeds>& speeds) {
  for (int step = 0; step < 12; ++step) shares.add(times_of(speeds, shares.shares()));
  return shares.shares();
}

TEST(ExecutorShares, FindsTheShortestStepOfAllDivisions) {
  uint64_t draw = 0;
  const auto between = [&](double low, double high) {
    return low + (high - low) * random_uniform(5, RandomStream::kTest, draw++);
  };
  for (int round = 0; round < 60; ++round) {
    const int64_t count = 3 + round % 11;
    std::vector<Speeds> speeds = {{0, between(0.5, 2), 0}};
    for (int e = 0; e < 1 + round % 2; ++e)
      speeds.push_back({between(0.01, 1), between(0.2, 8), 0});
    ExecutorShares shares(ExecutorShares::probe(speeds.size(), count), 0);
    EXPECT_NEAR(step_s(speeds, settle(shares, speeds)), shortest(speeds, count), 1e-9) << round;
  }
}

TEST(ExecutorShares, DecidesAfterThreeSteps) {
  const std::vector<Speeds> speeds = {{0, 1, 0}, {0.1, 3, 0}};
  ExecutorShares shares(ExecutorShares::probe(2, 8), 0.05);
  EXPECT_THAT(shares.shares(), ElementsAre(7, 1));
  // The first step is slow on both.
  EXPECT_FALSE(shares.add(times_of({{0, 90, 0}, {5, 20, 0}}, shares.shares())));
  EXPECT_FALSE(shares.add(times_of(speeds, shares.shares())));
  const auto move = shares.add(times_of(speeds, shares.shares()));
  ASSERT_TRUE(move);
  EXPECT_THAT(move->from, ElementsAre(7, 1));
  EXPECT_THAT(move->to, ElementsAre(6, 2));
  EXPECT_THAT(move->rate_s, ElementsAre(1, 3));
  EXPECT_DOUBLE_EQ(move->from_s, 7);
  EXPECT_DOUBLE_EQ(move->to_s, 6.1);
  EXPECT_TRUE(move->left_out.empty());
  EXPECT_FALSE(shares.add(times_of(speeds, shares.shares())));
}

TEST(ExecutorShares, LeavesOutAnExecutorThatDoesNotPay) {
  // Even one micro-batch takes longer there than all eight on the owner.
  const std::vector<Speeds> slow = {{0, 1, 0}, {0, 12, 0}, {0, 2, 0}};
  ExecutorShares shares(ExecutorShares::probe(3, 8), 0.05);
  shares.add(times_of(slow, shares.shares()));
  shares.add(times_of(slow, shares.shares()));
  const auto move = shares.add(times_of(slow, shares.shares()));
  ASSERT_TRUE(move);
  EXPECT_THAT(move->to, ElementsAre(6, 0, 2));
  ASSERT_EQ(move->left_out.size(), 1U);
  EXPECT_EQ(move->left_out[0].executor, 1U);
  EXPECT_DOUBLE_EQ(move->left_out[0].with_s, 12);
  EXPECT_DOUBLE_EQ(move->left_out[0].without_s, 6);
  EXPECT_DOUBLE_EQ(move->left_out[0].rate_s, 12);
  // It stays out, whatever its times would be.
  EXPECT_THAT(settle(shares, {{0, 1, 0}, {0, 0.1, 0}, {0, 2, 0}}), ElementsAre(6, 0, 2));
}

TEST(ExecutorShares, AGainBelowTheLimitDoesNotPay) {
  // 95 of 100 micro-batches on the owner: 5 % less, and 2 % more for adding.
  const std::vector<Speeds> speeds = {{0, 1, 0}, {0, 19, 0.4}};
  ExecutorShares strict(ExecutorShares::probe(2, 100), 0.05);
  EXPECT_THAT(settle(strict, speeds), ElementsAre(100, 0));
  ExecutorShares any(ExecutorShares::probe(2, 100), 0);
  EXPECT_THAT(settle(any, speeds), ElementsAre(95, 5));
  // Adding costs more than computing.
  ExecutorShares dear(ExecutorShares::probe(2, 100), 0);
  EXPECT_THAT(settle(dear, {{0, 1, 0}, {0, 1, 1.5}}), ElementsAre(100, 0));
}

TEST(ExecutorShares, AResumedRunMeasuresAgainWhatWasLeftOut) {
  EXPECT_THAT(ExecutorShares::resumed({5, 3}, 2, 8), ElementsAre(5, 3));
  EXPECT_THAT(ExecutorShares::resumed({5, 0, 3}, 3, 8), ElementsAre(4, 1, 3));
  EXPECT_THAT(ExecutorShares::resumed({1, 0, 7}, 3, 8), ElementsAre(6, 1, 1));
  EXPECT_THAT(ExecutorShares::resumed({5, 3}, 2, 9), ElementsAre(8, 1));
  EXPECT_THAT(ExecutorShares::resumed({}, 3, 9), ElementsAre(7, 1, 1));
}

TEST(ExecutorShares, FollowsAMachineThatChanges) {
  ExecutorShares shares(ExecutorShares::probe(2, 12), 0.05);
  EXPECT_THAT(settle(shares, {{0, 1, 0}, {0, 3, 0}}), ElementsAre(9, 3));
  EXPECT_THAT(settle(shares, {{0, 1, 0}, {0, 1, 0}}), ElementsAre(6, 6));
}

}  // namespace
}  // namespace dovetail::jobs::executor_shares_test
