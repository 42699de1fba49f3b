#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "dovetail/train/suites/python_random.h"
#include "dovetail/train/suites/suite_score.h"
#include "dovetail/train/suites/task.h"

namespace dovetail::train::suites_test {
namespace {

using ::testing::ElementsAre;

TEST(PythonRandom, SamplesAreThoseOfCPython) {
  // random.Random(1234).sample(range(size), count), one after another. Small ranges take another
  // way than large ones.
  PythonRandom random(1234);
  EXPECT_THAT(random.sample(10, 3), ElementsAre(7, 1, 0));
  EXPECT_THAT(random.sample(21, 5), ElementsAre(2, 18, 1, 20, 3));
  EXPECT_THAT(random.sample(22, 2), ElementsAre(11, 7));
  EXPECT_THAT(random.sample(85, 6), ElementsAre(2, 3, 84, 44, 79, 61));
  EXPECT_THAT(random.sample(86, 6), ElementsAre(78, 59, 19, 11, 23, 14));
  EXPECT_THAT(random.sample(100000, 2), ElementsAre(1916, 65940));
  EXPECT_THAT(random.sample(1, 1), ElementsAre(0));
  EXPECT_TRUE(random.sample(0, 0).empty());
}

TEST(PythonRandom, ASampleHasDifferentIndicesBelowTheSize) {
  PythonRandom random(7);
  for (const size_t size : {1, 2, 20, 21, 22, 31, 33, 100}) {
    for (size_t count = 0; count <= size; ++count) {
      const auto sample = random.sample(size, count);
      const std::set<size_t> different(sample.begin(), sample.end());
      EXPECT_EQ(different.size(), count);
      if (count > 0) {
        EXPECT_LT(*different.rbegin(), size);
      }
    }
  }
}

TEST(CombineResults, ByItemsIsTheAccuracyOverAllItems) {
  const SuiteTask task;
  const std::vector<MultipleChoiceResult> results = {
      {.items = 30, .accuracy = 0.5, .standard_error = 0.1},
      {.items = 10, .accuracy = 0.9, .standard_error = 0.2}};
  const SuiteScore score = combine_results(Suite::Weights::kItems, {&task, &task}, results);
  EXPECT_EQ(score.items, 40);
  EXPECT_DOUBLE_EQ(score.accuracy, 24.0 / 40);
  // Pooled variance of single items, divided by their number.
  const double pooled = (29 * 0.01 * 30 + 9 * 0.04 * 10) / (40 - 2);
  EXPECT_DOUBLE_EQ(score.standard_error, std::sqrt(pooled / 40));
  EXPECT_DOUBLE_EQ(score.accuracy_normalized, score.accuracy);
}

TEST(CombineResults, EquallyIsTheMeanOfTheTasks) {
  const SuiteTask plain, normalized{.normalized = true};
  const MultipleChoiceResult result = {.items = 30,
                                       .accuracy = 0.5,
                                       .standard_error = 0.3,
                                       .accuracy_normalized = 0.25,
                                       .standard_error_normalized = 0.4};
  const SuiteScore score =
      combine_results(Suite::Weights::kEqual, {&plain, &normalized}, {result, result});
  EXPECT_DOUBLE_EQ(score.accuracy, 0.5);
  EXPECT_DOUBLE_EQ(score.standard_error, std::sqrt(0.18) / 2);
  EXPECT_DOUBLE_EQ(score.accuracy_normalized, 0.375);
  EXPECT_DOUBLE_EQ(score.standard_error_normalized, 0.25);
}

TEST(CombineResults, OneItemATaskHasNoError) {
  const SuiteTask task;
  const MultipleChoiceResult one = {.items = 1, .accuracy = 1};
  EXPECT_EQ(combine_results(Suite::Weights::kItems, {&task, &task}, {one, one}).standard_error, 0);
}

}  // namespace
}  // namespace dovetail::train::suites_test
