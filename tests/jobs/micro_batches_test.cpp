// Shares of a step follow the ranks' speeds. They stay unchanged for gains below the threshold.
#include "dovetail/jobs/micro_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

namespace dovetail::jobs::micro_batches_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;

using Seconds = std::function<double(size_t rank, int64_t micro_batches)>;

/// Runs a step with the current shares.
std::optional<MicroBatchShares::Move> take_step(MicroBatchShares& shares, const Seconds& seconds) {
  const std::vector<int64_t> counts = shares.shares();
  std::vector<double> times;
  for (size_t r = 0; r < counts.size(); ++r) times.push_back(seconds(r, counts[r]));
  return shares.add(counts, times);
}

double last_end(const std::vector<int64_t>& shares, const Seconds& seconds) {
  double end = 0;
  for (size_t r = 0; r < shares.size(); ++r) end = std::max(end, seconds(r, shares[r]));
  return end;
}

/// Returns the minimum time over all ways to give `left` micro-batches to ranks from `rank` on, at
/// least one to each.
double best_end(std::vector<int64_t>& shares, size_t rank, int64_t left, const Seconds& seconds) {
  if (rank + 1 == shares.size()) {
    shares[rank] = left;
    return last_end(shares, seconds);
  }
  double best = HUGE_VAL;
  for (shares[rank] = 1; shares[rank] <= left - std::ssize(shares) + static_cast<int64_t>(rank) + 1;
       ++shares[rank])
    best = std::min(best, best_end(shares, rank + 1, left - shares[rank], seconds));
  return best;
}

TEST(MicroBatchShares, AreInProportionToSpeed) {
  MicroBatchShares shares({4, 4}, 0.05);
  const Seconds seconds = [](size_t r, int64_t n) {
    return (r == 0 ? 0.1 : 0.3) * static_cast<double>(n);
  };
  for (size_t i = 1; i < MicroBatchShares::kLeastTimes; ++i)
    EXPECT_FALSE(take_step(shares, seconds));
  const auto move = take_step(shares, seconds);
  ASSERT_TRUE(move);
  EXPECT_THAT(move->from, ElementsAre(4, 4));
  EXPECT_THAT(move->to, ElementsAre(6, 2));
  EXPECT_THAT(shares.shares(), ElementsAre(6, 2));
  EXPECT_NEAR(move->from_s, 1.2, 1e-12);
  EXPECT_NEAR(move->to_s, 0.6, 1e-12);
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(take_step(shares, seconds));
}

// For any number of ranks with any speeds, no other shares are faster by more than the requested
// gain.
TEST(MicroBatchShares, ComeWithinTheGainOfTheBestThereAre) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 60; ++trial) {
    const size_t ranks = 2 + random() % 3;
    const auto count = static_cast<int64_t>(ranks + random() % 12);
    std::vector<double> each;
    for (size_t r = 0; r < ranks; ++r)
      each.push_back(1e-3 * static_cast<double>(5 + random() % 95));
    const Seconds seconds = [&](size_t r, int64_t n) { return each[r] * static_cast<double>(n); };
    std::vector<int64_t> even(ranks, count / static_cast<int64_t>(ranks)), other(ranks);
    even[0] += count - std::accumulate(even.begin(), even.end(), int64_t{0});
    MicroBatchShares shares(even, 0.05);
    for (int i = 0; i < 30; ++i) take_step(shares, seconds);
    EXPECT_THAT(shares.shares(), Each(Ge(1)));
    EXPECT_EQ(std::accumulate(shares.shares().begin(), shares.shares().end(), int64_t{0}), count);
    EXPECT_LE((1 - 0.05) * last_end(shares.shares(), seconds),
              best_end(other, 0, count, seconds) * (1 + 1e-9))
        << trial;
  }
}

TEST(MicroBatchShares, FollowAChangeOfSpeedWithinAFewSteps) {
  MicroBatchShares shares({8, 8}, 0.05);
  int slow = 1;
  const Seconds seconds = [&](size_t r, int64_t n) {
    return (static_cast<int>(r) == slow ? 0.3 : 0.1) * static_cast<double>(n);
  };
  for (int i = 0; i < 40; ++i) take_step(shares, seconds);
  EXPECT_THAT(shares.shares(), ElementsAre(12, 4));
  slow = 0;
  for (size_t i = 0; i <= SpeedHistory::kChanged; ++i) take_step(shares, seconds);
  EXPECT_THAT(shares.shares(), ElementsAre(4, 12));
}

TEST(MicroBatchShares, StayForNoiseAndForLessThanTheGain) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(0.95, 1.05);
  MicroBatchShares shares({32, 32}, 0.05), restless({32, 32}, 0);
  const Seconds seconds = [&](size_t, int64_t n) {
    return 0.1 * noise(random) * static_cast<double>(n);
  };
  bool moved = false;
  for (int i = 0; i < 500; ++i) {
    EXPECT_FALSE(take_step(shares, seconds)) << i;
    moved |= take_step(restless, seconds).has_value();
  }
  EXPECT_TRUE(moved) << "the noise is enough to move what has no hysteresis";
  // A possible gain of 3 %: 33 : 31 ends at 3.3 s, 32 : 32 at 3.4 s.
  MicroBatchShares nearly({32, 32}, 0.05);
  for (int i = 0; i < 20; ++i)
    EXPECT_FALSE(take_step(nearly, [](size_t r, int64_t n) {
      return (r == 0 ? 0.1 : 0.10625) * static_cast<double>(n);
    }));
}

}  // namespace
}  // namespace dovetail::jobs::micro_batches_test
