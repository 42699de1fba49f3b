#include "dovetail/embedding/tiers/row_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "dovetail/base/rng.h"
#include "tests/embedding/testing.h"

namespace dovetail::embedding::row_cache_test {
namespace {

using dovetail::testing::user_error;
using ::testing::HasSubstr;

/// The policies as the header defines them, in loops over all slots and rows.
class Oracle {
 public:
  explicit Oracle(const RowCacheOptions& options)
      : options_(options), slots_(static_cast<size_t>(options.fast_rows + options.staging_rows)) {}

  std::vector<int64_t> begin(const std::vector<int64_t>& ids, std::vector<RowMove>& moves) {
    ++step_;
    std::vector<int64_t> found;
    for (const int64_t id : ids) {
      found.push_back(find(id));
      if (found.back() >= 0) touch(found.back());
      (found.back() >= 0 ? hits : misses)++;
      ++counts_[id];
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      if (found[i] >= 0) continue;
      found[i] = find(ids[i]);
      if (found[i] < 0) {
        found[i] = place(ids[i]);
        Slot& slot = slots_[static_cast<size_t>(found[i])];
        moves.push_back({found[i], ids[i], slot.row >= 0 && slot.dirty ? slot.row : -1});
        slot = {.row = ids[i]};
      }
      touch(found[i]);
    }
    return found;
  }

  std::vector<int64_t> end() {
    std::vector<int64_t> passed;
    for (size_t s = 0; s < slots_.size(); ++s) {
      if (slots_[s].used && static_cast<int64_t>(s) >= options_.fast_rows) {
        passed.push_back(slots_[s].row);
        slots_[s] = {};
      }
      slots_[s].dirty |= slots_[s].used;
      slots_[s].used = false;
    }
    const int64_t since = step_ - options_.warmup_steps;
    const bool due = since >= 0 && since % options_.refresh_steps == 0;
    if (options_.policy != TierPolicy::kHot) return passed;
    if (due && rows_left_ == 0 && first_examined_ == 0) choose();
    go_on();
    return passed;
  }

  void release(int64_t row) {
    const int64_t slot = find(row);
    if (slot >= 0) slots_[static_cast<size_t>(slot)] = {};
    if (slot >= 0) released_.push_back(slot);
    counts_.erase(row);
    hot_.erase(row);
  }

  int64_t hits = 0, misses = 0, counted = 0, counted_hot = 0;

 private:
  struct Slot {
    int64_t row = -1, rank = 0;
    bool used = false, dirty = false;
  };

  int64_t find(int64_t row) const {
    for (size_t s = 0; s < slots_.size(); ++s)
      if (slots_[s].row == row) return static_cast<int64_t>(s);
    return -1;
  }

  void touch(int64_t s) {
    Slot& slot = slots_[static_cast<size_t>(s)];
    slot.used = true;
    slot.rank = options_.policy == TierPolicy::kLru ? step_ : slot.rank + 1;
  }

  int64_t place(int64_t row) {
    if (options_.policy == TierPolicy::kHot && !released_.empty()) {
      const int64_t slot = released_.back();
      released_.pop_back();
      return slot;
    }
    int64_t first = 0, last = options_.fast_rows, best = -1;
    if (options_.policy != TierPolicy::kHot) {
      const auto sets = static_cast<uint64_t>(options_.fast_rows / RowCache::kWays);
      first =
          static_cast<int64_t>(mix_seed(0, static_cast<uint64_t>(row)) % sets) * RowCache::kWays;
      last = first + RowCache::kWays;
    }
    for (int64_t s = first; s < last; ++s)
      if (slots_[static_cast<size_t>(s)].row < 0) return s;
    for (int64_t s = first; s < last; ++s) {
      const Slot& slot = slots_[static_cast<size_t>(s)];
      if (slot.used) continue;
      if (options_.policy == TierPolicy::kHot) {
        if (s >= first_examined_ && hot_.contains(row) && !hot_.contains(slot.row)) best = s;
      } else if (best < 0 || slot.rank < slots_[static_cast<size_t>(best)].rank) {
        best = s;
      }
    }
    if (best >= 0) return best;
    for (int64_t s = options_.fast_rows; s < std::ssize(slots_); ++s)
      if (slots_[static_cast<size_t>(s)].row < 0) return s;
    for (int64_t s = options_.fast_rows - 1;; --s)
      if (!slots_[static_cast<size_t>(s)].used) return s;
  }

  /// Examines rows of a choice, then slots.
  void go_on() {
    if (rows_left_ > 0) {
      rows_left_ = std::max<int64_t>(0, rows_left_ - options_.sweep_rows);
      if (rows_left_ > 0) return;
      hot_ = next_hot_;
      first_examined_ = 0;
      for (int64_t s = 0; s < options_.fast_rows; ++s)
        if (slots_[static_cast<size_t>(s)].row >= 0) first_examined_ = s + 1;
    }
    first_examined_ = std::max<int64_t>(0, first_examined_ - options_.sweep_rows / 16);
  }

  void choose() {
    rows_left_ = options_.rows;
    std::vector<std::pair<int64_t, int64_t>> order;
    counted = counted_hot = 0;
    for (auto& [row, count] : counts_) {
      if (count > 0) order.emplace_back(-count, row);
      counted += count;
    }
    std::sort(order.begin(), order.end());
    order.resize(std::min(order.size(), static_cast<size_t>(options_.fast_rows)));
    next_hot_.clear();
    for (const auto& [count, row] : order) {
      next_hot_.insert(row);
      counted_hot -= count;
    }
    for (auto& [row, count] : counts_) count /= 2;
  }

  RowCacheOptions options_;
  std::vector<Slot> slots_;
  std::map<int64_t, int64_t> counts_;
  std::set<int64_t> hot_, next_hot_;
  std::vector<int64_t> released_;  ///< empty slots; the last one is taken first
  int64_t step_ = 0, rows_left_ = 0, first_examined_ = 0;
};

/// Returns ids: few rows often, drifting over time, and many seldom.
std::vector<int64_t> skewed_ids(int64_t step, int64_t count, int64_t rows) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    const double u =
        random_uniform(1, RandomStream::kTest, static_cast<uint64_t>(step * count + i));
    ids.push_back(
        (static_cast<int64_t>(static_cast<double>(rows) * u * u * u * u) + step / 20 * 7) % rows);
  }
  return ids;
}

/// Compares 200 steps of 60 ids. Each id occurs `times` times. With `releases`, some rows are
/// released after each third step. A release within a choice may leave the choice a row short, so
/// only counts are compared then.
void expect_like_oracle(const RowCacheOptions& options, int64_t times = 1) {
  RowCache cache(options);
  Oracle oracle(options);
  const bool only_counts = options.releases && options.sweep_rows < options.rows;
  for (int64_t step = 1; step <= 200; ++step) {
    std::vector<int64_t> ids;
    for (const int64_t id : skewed_ids(step, 60, options.rows))
      ids.insert(ids.end(), static_cast<size_t>(times), id);
    std::vector<int64_t> slots(ids.size());
    std::vector<RowMove> moves, expected, passed;
    // Uses two ranges, as for two features.
    cache.begin({{ids.data(), slots.data(), 23},
                 {ids.data() + 23, slots.data() + 23, std::ssize(ids) - 23}},
                "t", moves);
    const std::vector<int64_t> expected_slots = oracle.begin(ids, expected);
    if (!only_counts) {
      ASSERT_EQ(slots, expected_slots) << "step " << step;
      ASSERT_EQ(moves.size(), expected.size());
      for (size_t i = 0; i < moves.size(); ++i) {
        EXPECT_EQ(moves[i].slot, expected[i].slot);
        EXPECT_EQ(moves[i].row, expected[i].row);
        EXPECT_EQ(moves[i].evicted, expected[i].evicted);
      }
    }
    cache.end(RowCache::Rows::kChanged, passed);
    std::vector<int64_t> rows(passed.size());
    std::ranges::transform(passed, rows.begin(), &RowMove::evicted);
    std::vector<int64_t> by_slot = oracle.end();
    std::sort(rows.begin(), rows.end());
    std::sort(by_slot.begin(), by_slot.end());
    if (!only_counts) {
      ASSERT_EQ(rows, by_slot) << "step " << step;
    }
    ASSERT_EQ(cache.counted(), oracle.counted) << "step " << step;
    ASSERT_EQ(cache.counted_hot(), oracle.counted_hot) << "step " << step;
    for (const int64_t row :
         skewed_ids(step + 40, options.releases && step % 3 == 0 ? 4 : 0, options.rows)) {
      cache.release(row);
      oracle.release(row);
    }
  }
  if (only_counts) return;
  EXPECT_EQ(cache.hits(), oracle.hits);
  EXPECT_EQ(cache.misses(), oracle.misses);
  if (options.sweep_rows > options.rows && !options.releases) {
    EXPECT_GT(cache.hits(), cache.misses() / 4);
  }
}

TEST(RowCache, EveryPolicyIsItsDefinition) {
  for (const TierPolicy policy : {TierPolicy::kHot, TierPolicy::kLru, TierPolicy::kLfu}) {
    for (const int64_t fast_rows : {16, 64, 304}) {
      SCOPED_TRACE(fmt::format("policy {}, {} rows", static_cast<int>(policy), fast_rows));
      expect_like_oracle({.policy = policy,
                          .rows = 400,
                          .fast_rows = fast_rows,
                          .staging_rows = 60,
                          .warmup_steps = 10,
                          .refresh_steps = 25});
    }
  }
}

TEST(RowCache, AChoiceIsSpreadOverSteps) {
  for (const int64_t sweep_rows : {16, 57, 150, 333, 400}) {
    for (const int64_t fast_rows : {16, 64, 304}) {
      for (const int64_t refresh_steps : {1, 6, 25}) {
        SCOPED_TRACE(fmt::format("{} rows a step, {} fast, refresh {}", sweep_rows, fast_rows,
                                 refresh_steps));
        expect_like_oracle({.rows = 400,
                            .fast_rows = fast_rows,
                            .staging_rows = 60,
                            .warmup_steps = 10,
                            .refresh_steps = refresh_steps,
                            .sweep_rows = sweep_rows});
      }
    }
  }
}

TEST(RowCache, AReleasedRowLeavesNoTrace) {
  for (const TierPolicy policy : {TierPolicy::kHot, TierPolicy::kLru, TierPolicy::kLfu}) {
    for (const int64_t fast_rows : {16, 64, 304}) {
      for (const int64_t sweep_rows : {57, 10000}) {
        SCOPED_TRACE(fmt::format("policy {}, {} rows", static_cast<int>(policy), fast_rows));
        expect_like_oracle({.policy = policy,
                            .rows = 400,
                            .fast_rows = fast_rows,
                            .staging_rows = 60,
                            .warmup_steps = 10,
                            .refresh_steps = 25,
                            .sweep_rows = sweep_rows,
                            .releases = true},
                           /*times=*/sweep_rows == 57 ? 341 : 1);
      }
    }
  }
}

TEST(RowCache, AFullStagingAreaTakesSlotsOfTheFastTier) {
  for (const TierPolicy policy : {TierPolicy::kHot, TierPolicy::kLru, TierPolicy::kLfu})
    for (const int64_t sweep_rows : {57, 400})
      expect_like_oracle({.policy = policy,
                          .rows = 400,
                          .fast_rows = 64,
                          .staging_rows = 7,
                          .warmup_steps = 10,
                          .refresh_steps = 25,
                          .sweep_rows = sweep_rows});
}

/// Accesses from 1024 on have another representation. Two fast rows are fewer than such rows.
TEST(RowCache, AChoiceKnowsLargeCounts) {
  for (const int64_t fast_rows : {2, 8, 64})
    for (const int64_t sweep_rows : {16, 57})
      expect_like_oracle({.rows = 400,
                          .fast_rows = fast_rows,
                          .staging_rows = 60,
                          .warmup_steps = 10,
                          .refresh_steps = 25,
                          .sweep_rows = sweep_rows},
                         /*times=*/341);
}

TEST(RowCache, CountsGoOnBeyondSixteenBits) {
  RowCache cache(
      {.rows = 100, .fast_rows = 2, .staging_rows = 4, .warmup_steps = 2, .refresh_steps = 1});
  std::vector<int64_t> ids(200000, 7), slots(ids.size());
  ids.insert(ids.end(), {3, 3, 5});
  slots.resize(ids.size());
  std::vector<RowMove> moves;
  for (int step = 0; step < 3; ++step) {
    cache.begin({{ids.data(), slots.data(), static_cast<int64_t>(ids.size())}}, "t", moves);
    cache.end(RowCache::Rows::kSame, moves);
  }
  // Counts after two steps, and after these were halved and a third step came.
  EXPECT_EQ(cache.counted(), 200000 + 2 + 1 + 200003);
  EXPECT_EQ(cache.counted_hot(), 200000 + 2 + 200002);
}

TEST(RowCache, RowsThatDidNotChangeAreNotWritten) {
  RowCache cache({.policy = TierPolicy::kLru, .rows = 1000, .fast_rows = 16, .staging_rows = 8});
  std::vector<RowMove> passed;
  for (int64_t step = 0; step < 10; ++step) {
    std::vector<int64_t> ids(20), slots(20);
    for (int64_t i = 0; i < 20; ++i) ids[static_cast<size_t>(i)] = 20 * step + i;
    std::vector<RowMove> moves;
    cache.begin({{ids.data(), slots.data(), 20}}, "t", moves);
    EXPECT_EQ(moves.size(), 20U);
    for (const RowMove& move : moves) EXPECT_EQ(move.evicted, -1);
    cache.end(RowCache::Rows::kSame, passed);
  }
  EXPECT_TRUE(passed.empty());
}

TEST(RowCache, AStepThatDoesNotFitIsRefused) {
  RowCache cache({.rows = 1000, .fast_rows = 3, .staging_rows = 2});
  const std::vector<int64_t> ids = {1, 2, 3, 4, 5, 6};
  std::vector<int64_t> slots(6);
  std::vector<RowMove> moves;
  EXPECT_THAT(user_error([&] { cache.begin({{ids.data(), slots.data(), 6}}, "users", moves); }),
              HasSubstr("more than 2 distinct rows of table \"users\""));
  EXPECT_THAT(user_error([] { parse_tier_policy("fifo"); }), HasSubstr("fifo"));
}

TEST(SlotMap, IsAMap) {
  SlotMap<uint64_t> map(40);
  std::map<uint64_t, uint32_t> expected;
  for (uint64_t i = 0; i < 20000; ++i) {
    // Keys that collide in their low bits, in their high bits, and in sequence.
    const uint64_t draw = random_below(3, RandomStream::kTest, i, 90);
    const uint64_t key = draw < 30 ? draw : draw < 60 ? draw << 58 : draw << 20;
    const auto place = expected.find(key);
    ASSERT_EQ(map.find(key), place == expected.end() ? SlotMap<uint64_t>::kNone : place->second);
    if (place != expected.end()) {
      map.erase(key);
      expected.erase(place);
    } else {
      if (map.size() == map.room()) map.resize(map.room() + 1);
      map.insert(key, static_cast<uint32_t>(i));
      expected[key] = static_cast<uint32_t>(i);
    }
    ASSERT_EQ(map.size(), static_cast<int64_t>(expected.size()));
  }
}

}  // namespace
}  // namespace dovetail::embedding::row_cache_test
