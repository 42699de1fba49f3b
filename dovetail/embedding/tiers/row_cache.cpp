#include "dovetail/embedding/tiers/row_cache.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"

namespace dovetail::embedding {

namespace {

constexpr std::array<const char*, 3> kPolicyNames = {"hot", "lru", "lfu"};
/// Number of ids whose places in the map are prefetched ahead of the lookup.
constexpr int64_t kCountsAhead = 12;
/// Rows that a sweep settles at a time.
constexpr int64_t kSweepBlock = 64;
/// Work of an examined slot, in rows of a sweep. A slot's row is anywhere in memory.
constexpr int64_t kRowsOfSlot = 16;

int64_t bitmap_words(int64_t rows) { return (rows + 63) / 64; }

}  // namespace

TierPolicy parse_tier_policy(std::string_view name) {
  for (size_t i = 0; i < kPolicyNames.size(); ++i) {
    if (name == kPolicyNames[i]) return static_cast<TierPolicy>(i);
  }
  throw UserError(fmt::format("embedding: no policy of the fast tier is named \"{}\"", name),
                  "use hot, lru or lfu");
}

RowCache::RowCache(const RowCacheOptions& options)
    : options_(options), map_(options.fast_rows + options.staging_rows) {
  DOVETAIL_CHECK(
      holds_all() || options.policy == TierPolicy::kHot || options.fast_rows % kWays == 0,
      "{} rows in sets of {}", options.fast_rows, kWays);
  const auto slots = static_cast<size_t>(this->slots());
  row_of_.resize(slots, kNoRow);
  flags_.resize(slots);
  if (options.releases) empty_.reserve(static_cast<size_t>(options.fast_rows));
  if (holds_all()) return;
  if (counts()) {
    DOVETAIL_CHECK(options.sweep_rows >= kRowsOfSlot, "sweep_rows is {}", options.sweep_rows);
    counts_.resize(static_cast<size_t>(options.rows));
    histogram_.resize(kHigh);
    histogram_[0] = static_cast<uint32_t>(options.rows);
    swept_ = options.rows;
    replaceable_.resize(static_cast<size_t>(bitmap_words(options.fast_rows)));
  } else {
    rank_.resize(slots);
  }
}

int64_t RowCache::bytes_for(const RowCacheOptions& options) {
  const int64_t slots = options.fast_rows + options.staging_rows;
  const auto word = static_cast<int64_t>(sizeof(uint32_t));
  const int64_t common = SlotMap<uint32_t>::bytes_for(slots) + slots * (word + 1) +
                         (options.releases ? options.fast_rows * word : 0);
  if (options.fast_rows == options.rows) return common;
  if (options.policy != TierPolicy::kHot) return common + slots * word;
  return common + 8 * bitmap_words(options.fast_rows) + 2 * options.rows + kHigh * word;
}

void RowCache::begin(const std::vector<Ids>& ids, std::string_view table,
                     std::vector<RowMove>& moves) {
  DOVETAIL_CHECK(used_.empty(), "a step begins before the last has ended");
  ++step_;
  while (highest_word_ >= 0 && replaceable_[static_cast<size_t>(highest_word_)] == 0)
    --highest_word_;
  next_word_ = highest_word_;
  overflow_ = options_.fast_rows;
  // Find all rows that are present first, so that no row of this step is evicted for another.
  for (const Ids& part : ids) {
    for (int64_t i = 0; i < part.count; ++i) {
      if (i + kCountsAhead < part.count) {
        map_.prefetch(static_cast<uint32_t>(part.ids[i + kCountsAhead]));
        if (counts())
          __builtin_prefetch(counts_.data() + std::max<int64_t>(0, part.ids[i + kCountsAhead]), 1);
      }
      if (part.ids[i] == kNoId) {
        part.slots[i] = slots();
        continue;
      }
      part.slots[i] = find(part.ids[i]);
      if (part.slots[i] >= 0) use(part.slots[i]);
      if (counts()) count(part.ids[i]);
    }
  }
  for (const Ids& part : ids) {
    for (int64_t i = 0; i < part.count; ++i) {
      if (part.slots[i] >= 0) {
        if (part.ids[i] != kNoId) ++hits_;
        continue;
      }
      ++misses_;
      part.slots[i] = find(part.ids[i]);
      if (part.slots[i] < 0) {
        const int64_t row = part.ids[i], slot = place(row, table), old = row_in(slot);
        moves.push_back({slot, row, old >= 0 && changed(slot) ? old : -1});
        if (old >= 0) map_.erase(static_cast<uint32_t>(old));
        map_.insert(static_cast<uint32_t>(row), static_cast<uint32_t>(slot));
        row_of_[static_cast<size_t>(slot)] = static_cast<uint32_t>(row);
        flags_[static_cast<size_t>(slot)] = 0;
        if (!rank_.empty()) rank_[static_cast<size_t>(slot)] = 0;
        part.slots[i] = slot;
      }
      use(part.slots[i]);
    }
  }
}

bool RowCache::look_up(const std::vector<Ids>& ids, std::vector<RowMove>& moves) const {
  DOVETAIL_CHECK(used_.empty(), "a lookup within a step");
  // Sets may have empty slots anywhere. Other fast tiers fill from the first slot on.
  const int64_t first = rank_.empty() ? filled_ : options_.fast_rows, room = slots() - first;
  SlotMap<uint32_t> brought(16);
  for (const Ids& part : ids) {
    for (int64_t i = 0; i < part.count; ++i) {
      if (i + kCountsAhead < part.count)
        map_.prefetch(static_cast<uint32_t>(part.ids[i + kCountsAhead]));
      part.slots[i] = part.ids[i] == kNoId ? slots() : find(part.ids[i]);
      if (part.slots[i] >= 0) continue;
      const auto row = static_cast<uint32_t>(part.ids[i]);
      uint32_t number = brought.find(row);
      if (number == SlotMap<uint32_t>::kNone) {
        if (brought.size() == room) return false;
        if (brought.size() == brought.room()) brought.resize(2 * brought.room());
        number = static_cast<uint32_t>(brought.size());
        brought.insert(row, number);
        moves.push_back({first + number, part.ids[i], -1});
      }
      part.slots[i] = first + number;
    }
  }
  return true;
}

void RowCache::end(Rows changed, std::vector<RowMove>& leaving) {
  for (const int64_t slot : used_) {
    const auto s = static_cast<size_t>(slot);
    flags_[s] &= static_cast<uint8_t>(~kUsed);
    if (slot < options_.fast_rows) {
      if (changed == Rows::kChanged) flags_[s] |= kDirty;
      continue;
    }
    if (changed == Rows::kChanged) leaving.push_back({slot, -1, row_in(slot)});
    map_.erase(row_of_[s]);
    row_of_[s] = kNoRow;
  }
  used_.clear();
  staged_ = 0;
  const int64_t since = step_ - options_.warmup_steps;
  const bool refresh =
      since > 0 && options_.refresh_steps > 0 && since % options_.refresh_steps == 0;
  if (!counts()) return;
  const bool idle = swept_ == options_.rows && examined_ == 0;
  if (idle && (since == 0 || refresh)) begin_choice();
  if (swept_ < options_.rows) sweep();
  if (swept_ == options_.rows && examined_ > 0) examine_slots();
}

void RowCache::release(int64_t row) {
  DOVETAIL_CHECK(options_.releases && used_.empty(), "row {} is released", row);
  if (counts()) forget_accesses(row);
  const int64_t slot = find(row);
  if (slot < 0) return;
  const auto s = static_cast<size_t>(slot);
  map_.erase(static_cast<uint32_t>(row));
  row_of_[s] = kNoRow;
  flags_[s] = 0;
  if (counts()) replaceable_[s / 64] &= ~(uint64_t{1} << (s % 64));
  if (rank_.empty()) empty_.push_back(static_cast<uint32_t>(slot));
}

int64_t RowCache::find(int64_t row) const {
  const uint32_t slot = map_.find(static_cast<uint32_t>(row));
  return slot == SlotMap<uint32_t>::kNone ? -1 : static_cast<int64_t>(slot);
}

int64_t RowCache::row_in(int64_t slot) const {
  const uint32_t row = row_of_[static_cast<size_t>(slot)];
  return row == kNoRow ? -1 : static_cast<int64_t>(row);
}

void RowCache::use(int64_t slot) {
  uint8_t& flags = flags_[static_cast<size_t>(slot)];
  if ((flags & kUsed) == 0) used_.push_back(slot);
  flags |= kUsed;
  if (rank_.empty()) return;
  uint32_t& rank = rank_[static_cast<size_t>(slot)];
  rank = options_.policy == TierPolicy::kLru ? static_cast<uint32_t>(step_) : rank + 1;
}

int64_t RowCache::place(int64_t row, std::string_view table) {
  int64_t slot = -1;
  if (holds_all()) {
    slot = take_empty_slot();
  } else {
    slot = options_.policy == TierPolicy::kHot ? place_hot(row) : place_in_set(row);
  }
  if (slot < 0) slot = staged_ < options_.staging_rows ? options_.fast_rows + staged_++ : -1;
  return slot >= 0 ? slot : place_anywhere(row, table);
}

int64_t RowCache::place_hot(int64_t row) {
  if (const int64_t slot = take_empty_slot(); slot >= 0) {
    if (hot_bit_ != 0 && !is_hot(row)) mark_replaceable(slot);
    return slot;
  }
  return is_hot(row) ? take_replaceable() : -1;
}

/// Returns an empty slot, or -1. Slots of released rows come first.
int64_t RowCache::take_empty_slot() {
  if (empty_.empty()) return filled_ < options_.fast_rows ? filled_++ : -1;
  const int64_t slot = empty_.back();
  empty_.pop_back();
  return slot;
}

/// Returns the highest replaceable slot that the step does not use, or -1.
int64_t RowCache::take_replaceable() {
  for (; next_word_ >= 0; --next_word_) {
    uint64_t& word = replaceable_[static_cast<size_t>(next_word_)];
    for (uint64_t left = word; left != 0;) {
      const uint64_t bit = std::bit_floor(left);
      const int64_t slot = 64 * next_word_ + std::countr_zero(bit);
      left &= ~bit;
      if ((flags_[static_cast<size_t>(slot)] & kUsed) != 0) continue;
      word &= ~bit;
      return slot;
    }
  }
  return -1;
}

void RowCache::mark_replaceable(int64_t slot) {
  replaceable_[static_cast<size_t>(slot / 64)] |= uint64_t{1} << (slot % 64);
  highest_word_ = std::max(highest_word_, slot / 64);
}

int64_t RowCache::place_in_set(int64_t row) const {
  const auto sets = static_cast<uint64_t>(options_.fast_rows / kWays);
  const auto first = static_cast<int64_t>(mix_seed(0, static_cast<uint64_t>(row)) % sets) * kWays;
  int64_t best = -1;
  for (int64_t slot = first; slot < first + kWays; ++slot) {
    const auto s = static_cast<size_t>(slot);
    if (row_of_[s] == kNoRow) return slot;
    if ((flags_[s] & kUsed) == 0 && (best < 0 || rank_[s] < rank_[static_cast<size_t>(best)]))
      best = slot;
  }
  return best;
}

/// Returns the highest fast slot that the step does not use.
int64_t RowCache::place_anywhere(int64_t row, std::string_view table) {
  while (overflow_ > 0) {
    const int64_t slot = --overflow_;
    if ((flags_[static_cast<size_t>(slot)] & kUsed) != 0) continue;
    if (counts() && hot_bit_ != 0 && slot >= examined_ && !is_hot(row)) mark_replaceable(slot);
    return slot;
  }
  throw UserError(
      fmt::format("embedding: a step reads more than {} distinct rows of table \"{}\" that are not "
                  "in the fast tier, which is full",
                  options_.staging_rows, table),
      "raise step_rows, or take smaller batches");
}

void RowCache::count(int64_t row) {
  uint16_t& word = counts_[static_cast<size_t>(row)];
  if ((word & kEpoch) != epoch_) settle(row);
  const auto low = static_cast<size_t>(word & kLow);
  const bool high = (word & kHigh) != 0;
  if (!high) --histogram_[low];
  if (low < kLow) {
    ++word;
    if (!high) ++histogram_[low + 1];
    return;
  }
  word = static_cast<uint16_t>((word & ~kLow) | kHigh);
  high_counts_[row] += kHigh;
}

/// Returns the accesses of a row, halved by each choice that has settled it.
int64_t RowCache::accesses(int64_t row) const {
  const uint16_t word = counts_[static_cast<size_t>(row)];
  return (word & kLow) + ((word & kHigh) == 0 ? 0 : high_counts_.at(row));
}

/// Sets the accesses of a row to 0. A choice in progress does not choose it.
void RowCache::forget_accesses(int64_t row) {
  uint16_t& word = counts_[static_cast<size_t>(row)];
  if ((word & kEpoch) != epoch_) settle(row);
  if ((word & kHigh) != 0) {
    high_counts_.erase(row);
  } else {
    --histogram_[word & kLow];
  }
  ties_ahead_.erase(row);
  word = epoch_;
  ++histogram_[0];
}

void RowCache::begin_choice() {
  find_threshold();
  halve_histogram();
  epoch_ ^= kEpoch;
  swept_ = 0;
}

/// Sets threshold_, room_ and the sums of accesses. All rows are settled.
void RowCache::find_threshold() {
  const auto high_rows = static_cast<int64_t>(high_counts_.size());
  std::vector<int64_t> high;
  high.reserve(high_counts_.size());
  for (const auto& [row, rest] : high_counts_) high.push_back(accesses(row));
  std::ranges::sort(high, std::greater<>());
  room_ = options_.fast_rows;
  counted_ = std::accumulate(high.begin(), high.end(), int64_t{0});
  for (size_t c = 1; c < histogram_.size(); ++c)
    counted_ += static_cast<int64_t>(c) * histogram_[c];
  counted_hot_ = 0;
  if (high_rows > room_) {
    threshold_ = high[static_cast<size_t>(room_)];
    for (const int64_t all : high) {
      if (all <= threshold_) break;
      counted_hot_ += all;
      --room_;
    }
  } else {
    room_ -= high_rows;
    counted_hot_ = std::accumulate(high.begin(), high.end(), int64_t{0});
    for (threshold_ = kLow; threshold_ > 0; --threshold_) {
      const int64_t rows = histogram_[static_cast<size_t>(threshold_)];
      if (rows > room_) break;
      room_ -= rows;
      counted_hot_ += rows * threshold_;
    }
  }
  counted_hot_ += room_ * threshold_;  // more rows than room_ have threshold_ accesses, or it is 0
}

void RowCache::halve_histogram() {
  std::vector<uint32_t> halved(histogram_.size());
  for (size_t c = 0; c < histogram_.size(); ++c) halved[c / 2] += histogram_[c];
  for (const auto& [row, rest] : high_counts_)
    if (const int64_t half = accesses(row) / 2; half <= kLow) ++halved[static_cast<size_t>(half)];
  histogram_ = std::move(halved);
}

/// Decides about a row, except in a tie ahead of the sweep, and halves its accesses.
void RowCache::settle(int64_t row) {
  uint16_t& word = counts_[static_cast<size_t>(row)];
  const uint16_t hot = kHotBits[epoch_ == 0 ? 0 : 1];
  const int64_t all = accesses(row), low = all / 2 % kHigh, rest = all / 2 - low;
  if ((word & kHigh) != 0) {
    if (rest > 0) {
      high_counts_[row] = rest;
    } else {
      high_counts_.erase(row);
    }
  }
  const auto active = static_cast<uint16_t>(word & hot_bit_);
  word = static_cast<uint16_t>(active | epoch_ | (rest > 0 ? kHigh : 0) | low);
  if (all > threshold_) word |= hot;
  if (all != threshold_ || all == 0) return;
  if (row == swept_) return decide_tie(row);
  ties_ahead_.insert(row);
}

/// Chooses a row with threshold_ accesses if there is room. Rows come in ascending order.
void RowCache::decide_tie(int64_t row) {
  if (room_ == 0) return;
  --room_;
  counts_[static_cast<size_t>(row)] |= kHotBits[epoch_ == 0 ? 0 : 1];
}

/// Settles the next sweep_rows rows, and applies the choice after the last.
void RowCache::sweep() {
  const int64_t end = std::min(options_.rows, swept_ + options_.sweep_rows);
  while (swept_ < end) {
    if (swept_ + kSweepBlock <= end && settle_block(swept_)) {
      swept_ += kSweepBlock;
      continue;
    }
    for (const int64_t last = std::min(end, swept_ + kSweepBlock); swept_ < last; ++swept_) {
      if ((counts_[static_cast<size_t>(swept_)] & kEpoch) != epoch_) {
        settle(swept_);
      } else if (!ties_ahead_.empty() && *ties_ahead_.begin() == swept_) {
        ties_ahead_.erase(ties_ahead_.begin());
        decide_tie(swept_);
      }
    }
  }
  if (swept_ == options_.rows) apply_choice();
}

/// Settles kSweepBlock rows at once. Returns false, and does nothing, if
/// a row is settled already, has kHigh or is in a tie.
bool RowCache::settle_block(int64_t first) {
  uint16_t* const words = &counts_[static_cast<size_t>(first)];
  const auto threshold = static_cast<uint16_t>(std::min<int64_t>(threshold_, kHigh));
  const uint16_t epoch = epoch_, keep = hot_bit_, hot = kHotBits[epoch_ == 0 ? 0 : 1];
  uint16_t special = 0;
  for (int64_t i = 0; i < kSweepBlock; ++i) {
    const uint16_t word = words[i], low = word & kLow;
    const bool tie = low == threshold && low != 0;
    special |= static_cast<uint16_t>(((word ^ epoch ^ kEpoch) & kEpoch) | (word & kHigh) | tie);
  }
  if (special != 0) return false;
  for (int64_t i = 0; i < kSweepBlock; ++i) {
    const uint16_t word = words[i], low = word & kLow;
    const uint16_t chosen = low > threshold ? hot : uint16_t{0};
    words[i] = static_cast<uint16_t>((word & keep) | epoch | chosen | low / 2);
  }
  return true;
}

void RowCache::apply_choice() {
  hot_bit_ = kHotBits[epoch_ == 0 ? 0 : 1];
  std::ranges::fill(replaceable_, 0);
  highest_word_ = -1;
  examined_ = filled_;
}

void RowCache::examine_slots() {
  const int64_t last = std::max<int64_t>(0, examined_ - options_.sweep_rows / kRowsOfSlot);
  while (examined_ > last) {
    --examined_;
    if (examined_ >= kCountsAhead)
      __builtin_prefetch(counts_.data() + std::max<int64_t>(0, row_in(examined_ - kCountsAhead)));
    const int64_t row = row_in(examined_);
    if (row >= 0 && !is_hot(row)) mark_replaceable(examined_);
  }
}

}  // namespace dovetail::embedding
