#include "dovetail/data/text/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "dovetail/base/error.h"

namespace dovetail::data::sampling_test {
namespace {

TEST(MixtureOrder, GivesEverySourceItsShareAtEveryLength) {
  for (const std::vector<double>& weights : std::vector<std::vector<double>>{
           {1}, {1, 1}, {0.7, 0.3}, {3, 1, 1}, {1e-6, 1}, {0.1, 0.2, 0.3, 0.4, 0.5}}) {
    const MixtureOrder order(weights);
    double total = 0;
    for (const double weight : weights) total += weight;
    std::vector<uint64_t> drawn(weights.size(), 0);
    for (uint64_t sample = 0; sample < 20000; ++sample) {
      for (size_t j = 0; j < weights.size(); ++j) {
        // The closed form agrees with counting.
        ASSERT_EQ(order.count(j, sample), drawn[j]) << "sample " << sample << " source " << j;
        // Each level of the nesting rounds once.
        ASSERT_NEAR(static_cast<double>(drawn[j]), static_cast<double>(sample) * weights[j] / total,
                    static_cast<double>(weights.size()));
      }
      ++drawn[order.source_of(sample)];
    }
  }
}

TEST(MixtureOrder, HoldsFarOut) {
  const MixtureOrder order({2, 1});
  const uint64_t far = uint64_t{1} << 50;
  EXPECT_EQ(order.count(0, far) + order.count(1, far), far);
  EXPECT_NEAR(static_cast<double>(order.count(1, far)) / static_cast<double>(far), 1.0 / 3, 1e-9);
  const size_t source = order.source_of(far);
  EXPECT_EQ(order.count(source, far + 1), order.count(source, far) + 1);
}

TEST(WindowOrder, TakesEveryWindowOnceAnEpoch) {
  for (const auto& [tokens, context] : std::vector<std::pair<int64_t, int64_t>>{
           {2, 1}, {9, 8}, {15, 8}, {16, 8}, {17, 8}, {100, 7}, {1001, 10}, {129, 128}}) {
    const WindowOrder order(5, tokens, context, "x");
    const int64_t windows = order.windows();
    std::set<int64_t> offsets;
    for (int64_t epoch = 0; epoch < 20; ++epoch) {
      std::set<int64_t> begins;
      for (int64_t i = 0; i < windows; ++i) {
        const int64_t begin = order.begin(static_cast<uint64_t>(epoch * windows + i));
        ASSERT_GE(begin, 0);
        ASSERT_LE(begin + context + 1, tokens);
        begins.insert(begin);
      }
      ASSERT_EQ(static_cast<int64_t>(begins.size()), windows);
      // Side by side: each token of the epoch's stretch is a target once.
      EXPECT_EQ(*begins.rbegin() - *begins.begin(), (windows - 1) * context);
      EXPECT_LT(*begins.begin(), context);
      offsets.insert(*begins.begin());
    }
    // Nothing but the offset's range is left out.
    EXPECT_GT((windows + 2) * context + 1, tokens);
    if (tokens >= 2 * context && context > 2) {
      EXPECT_GT(offsets.size(), 2u);
    }
  }
}

TEST(WindowOrder, HasAnotherOrderEachEpochAndForEachSeed) {
  const auto order_of = [](uint64_t seed, uint64_t epoch) {
    const WindowOrder order(seed, 10001, 10, "x");
    std::vector<int64_t> windows;
    for (uint64_t i = 0; i < 100; ++i)
      windows.push_back(order.begin(epoch * static_cast<uint64_t>(order.windows()) + i) / 10);
    return windows;
  };
  EXPECT_EQ(order_of(1, 0), order_of(1, 0));
  EXPECT_NE(order_of(1, 0), order_of(1, 1));
  EXPECT_NE(order_of(1, 0), order_of(2, 0));
}

TEST(WindowOrder, RefusesASourceWithoutAWindow) {
  EXPECT_NO_THROW(WindowOrder(1, 11, 10, "short"));
  EXPECT_THROW(WindowOrder(1, 10, 10, "short"), UserError);
  EXPECT_THROW(WindowOrder(1, 0, 10, "short"), UserError);
}

}  // namespace
}  // namespace dovetail::data::sampling_test
