#include "dovetail/moe/slot_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace dovetail::moe::slot_order_test {
namespace {

std::vector<int64_t> permutation(int64_t size) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, std::mt19937(1));
  return order;
}

TEST(SlotOrder, SequencesGoTokenByTokenOrChoiceByChoice) {
  for (const auto& [tokens, k] :
       {std::pair<int64_t, int64_t>(0, 2), {1, 1}, {5, 1}, {7, 3}, {1, 4}}) {
    const auto order = permutation(tokens);
    std::vector<int64_t> by_token, by_choice, by_index;
    for (const int64_t t : order) {
      for (int64_t j = 0; j < k; ++j) by_token.push_back(t * k + j);
    }
    for (int64_t j = 0; j < k; ++j) {
      for (const int64_t t : order) by_choice.push_back(t * k + j);
      for (int64_t t = 0; t < tokens; ++t) by_index.push_back(t * k + j);
    }
    const auto found = [&](const int64_t* in_order, bool token_first) {
      const SlotSequence sequence{
          .order = in_order, .tokens = tokens, .k = k, .by_token = token_first};
      std::vector<int64_t> choices;
      for (int64_t i = 0; i < sequence.size(); ++i) choices.push_back(sequence.choice(i));
      return choices;
    };
    EXPECT_EQ(found(order.data(), true), by_token);
    EXPECT_EQ(found(order.data(), false), by_choice);
    EXPECT_EQ(found(nullptr, false), by_index);
  }
}

/// Runs the algorithm of cuda/slots.cu tile by tile and compares with counting.
TEST(SlotOrder, TilesAddUpToThePlaceAmongEqualKeys) {
  constexpr int32_t kKeys = 5;
  for (const int64_t size : {1, 31, kSlotTile - 1, kSlotTile, kSlotTile + 1, 3 * kSlotTile + 7}) {
    std::mt19937 random(2);
    std::vector<int32_t> keys(static_cast<size_t>(size)), before(kKeys, 0), seen(kKeys, 0);
    for (int32_t& key : keys)
      key = static_cast<int32_t>(random() % kKeys * (random() % 2));  // most are 0
    for (int64_t tile = 0; tile < slot_tiles(size); ++tile) {
      const int64_t first = tile * kSlotTile;
      const int held = static_cast<int>(std::min<int64_t>(kSlotTile, size - first));
      ASSERT_GT(held, 0);
      std::vector<int32_t> counts(kKeys, 0);
      for (int i = 0; i < held; ++i) {
        const auto key = static_cast<size_t>(keys[static_cast<size_t>(first + i)]);
        const Equals equals = equal_keys(keys.data() + first, held, i);
        EXPECT_EQ(before[key] + equals.before, seen[key]++);
        if (equals.behind == 0) counts[key] = equals.before + 1;
      }
      for (size_t key = 0; key < kKeys; ++key) before[key] += counts[key];
    }
    EXPECT_EQ(before, seen);
  }
}

TEST(SlotOrder, StandsBeforeIsTheOrderOfAStableSort) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {0.5,  -kInfinity, 0.5,        0.25, 0.0,
                                      -0.0, kInfinity,  -kInfinity, 0.25};
  std::vector<int64_t> sorted = permutation(static_cast<int64_t>(values.size())),
                       expected(values.size());
  const auto value = [&](int64_t i) { return values[static_cast<size_t>(i)]; };
  std::ranges::sort(sorted,
                    [&](int64_t a, int64_t b) { return stands_before(value(a), a, value(b), b); });
  std::iota(expected.begin(), expected.end(), 0);
  std::ranges::stable_sort(expected, [&](int64_t a, int64_t b) { return value(a) > value(b); });
  EXPECT_EQ(sorted, expected);
}

}  // namespace
}  // namespace dovetail::moe::slot_order_test
