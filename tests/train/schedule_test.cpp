#include "dovetail/train/optimizer/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace dovetail::train::schedule_test {
namespace {

class EveryDecay : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryDecay, WarmsUpLinearlyThenNeverRisesAndStaysInRange) {
  const ScheduleSection schedule = {.warmup_steps = 10, .decay = GetParam(), .min_lr_ratio = 0.1};
  const double lr = 3e-4;
  for (int64_t step = 0; step < 10; ++step) {
    EXPECT_DOUBLE_EQ(learning_rate(schedule, lr, step, 200),
                     lr * static_cast<double>(step + 1) / 10.0);
  }
  double previous = lr;
  for (int64_t step = 10; step < 200; ++step) {
    const double now = learning_rate(schedule, lr, step, 200);
    EXPECT_LE(now, previous) << step;
    EXPECT_GE(now, 0.1 * lr) << step;
    previous = now;
  }
}
INSTANTIATE_TEST_SUITE_P(Schedule, EveryDecay,
                         ::testing::Values("cosine", "linear", "wsd", "constant"));

TEST(Schedule, FollowsItsFormulaAtChosenPoints) {
  const double lr = 2.0;
  EXPECT_DOUBLE_EQ(
      learning_rate({.warmup_steps = 0, .decay = "cosine", .min_lr_ratio = 0.1}, lr, 50, 100),
      2.0 * 0.55);
  EXPECT_NEAR(
      learning_rate({.warmup_steps = 0, .decay = "cosine", .min_lr_ratio = 0.0}, lr, 25, 100),
      1.0 + std::cos(std::numbers::pi / 4), 1e-12);
  EXPECT_DOUBLE_EQ(
      learning_rate({.warmup_steps = 20, .decay = "linear", .min_lr_ratio = 0.5}, lr, 60, 100),
      1.5);
  EXPECT_DOUBLE_EQ(learning_rate({.decay = "constant"}, lr, 99, 100), 2.0);
  const ScheduleSection wsd = {.decay = "wsd", .min_lr_ratio = 0.0, .decay_fraction = 0.25};
  EXPECT_DOUBLE_EQ(learning_rate(wsd, lr, 75, 100), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, lr, 85, 100), 2.0 * 15 / 25);
}

TEST(Schedule, ARunOfOneStepHasALearningRate) {
  for (const char* decay : {"cosine", "linear", "wsd", "constant"}) {
    EXPECT_GT(learning_rate({.decay = decay}, 1.0, 0, 1), 0.0) << decay;
  }
}

}  // namespace
}  // namespace dovetail::train::schedule_test
