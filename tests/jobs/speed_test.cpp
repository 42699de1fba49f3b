// Estimates a device's speed from times. Some of the times are wrong.
#include "dovetail/jobs/speed.h"

#include <gtest/gtest.h>

#include <random>

#include "dovetail/base/error.h"

namespace dovetail::jobs::speed_test {
namespace {

constexpr double kStart = 2e-3, kRow = 5e-6;

double true_time(int64_t rows) { return kStart + kRow * static_cast<double>(rows); }

TEST(SpeedHistory, FindsStartAndSlopeOfExactTimes) {
  SpeedHistory history;
  EXPECT_FALSE(history.speed());
  for (const int64_t rows : {100, 1000, 5000}) history.add(rows, true_time(rows));
  EXPECT_NEAR(history.speed()->start_s, kStart, 1e-12);
  EXPECT_NEAR(history.speed()->row_s, kRow, 1e-15);
}

TEST(SpeedHistory, OfOneSizeKnowsTheRatioAlone) {
  SpeedHistory history;
  history.add(1000, 0.5);
  history.add(1000, 0.5);
  EXPECT_EQ(history.speed()->start_s, 0);
  EXPECT_DOUBLE_EQ(history.speed()->row_s, 5e-4);
}

TEST(SpeedHistory, IsNotMovedByAQuarterOfWildTimes) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> noise(0.98, 1.02);
  SpeedHistory history;
  for (int i = 0; i < 40; ++i) {
    const auto rows = static_cast<int64_t>(500 + random() % 9500);
    history.add(rows, i % 4 == 3 ? true_time(rows) * 20 : true_time(rows) * noise(random));
  }
  EXPECT_NEAR(history.speed()->row_s, kRow, 0.1 * kRow);
  EXPECT_EQ(history.size(), 40U) << "nothing was forgotten";
}

TEST(SpeedHistory, ForgetsWhatWasBeforeTheMachineChanged) {
  for (const double factor : {3.0, 0.3}) {
    SpeedHistory history;
    for (int i = 0; i < 30; ++i) history.add(1000 + 100 * i, true_time(1000 + 100 * i));
    for (int i = 0; i < static_cast<int>(SpeedHistory::kChanged); ++i)
      history.add(2000 + 500 * i, factor * true_time(2000 + 500 * i));
    EXPECT_EQ(history.size(), SpeedHistory::kChanged);
    EXPECT_NEAR(history.speed()->row_s, factor * kRow, 1e-3 * kRow) << factor;
  }
}

TEST(SpeedHistory, KeepsTheLatest) {
  SpeedHistory history;
  for (int i = 0; i < 100; ++i) history.add(1000 + i, true_time(1000 + i));
  EXPECT_EQ(history.size(), SpeedHistory::kKept);
}

TEST(SpeedHistory, RefusesWhatIsNoTime) {
  SpeedHistory history;
  EXPECT_THROW(history.add(0, 1), InternalError);
  EXPECT_THROW(history.add(1, 0), InternalError);
}

}  // namespace
}  // namespace dovetail::jobs::speed_test
