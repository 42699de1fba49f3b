#include "dovetail/embedding/tiers/row_cache.h"

#include <algorithm>
#include <array>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"

namespace dovetail::embedding {

namespace {

constexpr std::array<const char*, 3> kPolicyNames = {"hot", "lru", "lfu"};
/// Number of ids whose places in the map are prefetched ahead of the lookup.
constexpr int64_t kCountsAhead = 12;
/// Access counts from here on are treated as equal when the most frequent rows are chosen.
constexpr size_t kMostCounted = UINT16_MAX;

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
  const auto slots = static_cast<size_t>(options.fast_rows + options.staging_rows);
  row_of_.resize(slots, kNoRow);
  flags_.resize(slots);
  if (holds_all()) return;
  if (counts()) {
    counts_.resize(static_cast<size_t>(options.rows));
    hot_.resize(static_cast<size_t>(bitmap_words(options.rows)));
    replaceable_.reserve(static_cast<size_t>(options.fast_rows));
  } else {
    rank_.resize(slots);
  }
}

int64_t RowCache::bytes_for(const RowCacheOptions& options) {
  const int64_t slots = options.fast_rows + options.staging_rows;
  const auto word = static_cast<int64_t>(sizeof(uint32_t));
  const int64_t common = SlotMap<uint32_t>::bytes_for(slots) + slots * (word + 1);
  if (options.fast_rows == options.rows) return common;
  if (options.policy != TierPolicy::kHot) return common + slots * word;
  return common + options.fast_rows * word + 2 * options.rows + 8 * bitmap_words(options.rows);
}

void RowCache::begin(const std::vector<Ids>& ids, std::string_view table,
                     std::vector<RowMove>& moves) {
  DOVETAIL_CHECK(used_.empty(), "a step begins before the last has ended");
  ++step_;
  // Find all rows that are present first, so that no row of this step is evicted for another.
  for (const Ids& part : ids) {
    for (int64_t i = 0; i < part.count; ++i) {
      if (i + kCountsAhead < part.count) {
        map_.prefetch(static_cast<uint32_t>(part.ids[i + kCountsAhead]));
        if (counts())
          __builtin_prefetch(&counts_[static_cast<size_t>(part.ids[i + kCountsAhead])], 1);
      }
      part.slots[i] = find(part.ids[i]);
      if (part.slots[i] >= 0) use(part.slots[i]);
      if (counts()) count(part.ids[i]);
    }
  }
  for (const Ids& part : ids) {
    for (int64_t i = 0; i < part.count; ++i) {
      if (part.slots[i] >= 0) {
        ++hits_;
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
  const int64_t first = rank_.empty() ? filled_ : options_.fast_rows,
                room = options_.fast_rows + options_.staging_rows - first;
  SlotMap<uint32_t> brought(16);
  for (const Ids& part : ids) {
    for (int64_t i = 0; i < part.count; ++i) {
      if (i + kCountsAhead < part.count)
        map_.prefetch(static_cast<uint32_t>(part.ids[i + kCountsAhead]));
      part.slots[i] = find(part.ids[i]);
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

void RowCache::end(Rows changed, std::vector<RowMove>& passed) {
  for (const int64_t slot : used_) {
    const auto s = static_cast<size_t>(slot);
    flags_[s] &= static_cast<uint8_t>(~kUsed);
    if (slot < options_.fast_rows) {
      if (changed == Rows::kChanged) flags_[s] |= kDirty;
      continue;
    }
    if (changed == Rows::kChanged) passed.push_back({slot, row_in(slot), -1});
    map_.erase(row_of_[s]);
    row_of_[s] = kNoRow;
  }
  used_.clear();
  staged_ = 0;
  const int64_t since = step_ - options_.warmup_steps;
  const bool refresh =
      since > 0 && options_.refresh_steps > 0 && since % options_.refresh_steps == 0;
  if (counts() && (since == 0 || refresh)) choose_hot();
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
    slot = filled_++;
  } else {
    slot = options_.policy == TierPolicy::kHot ? place_hot(row) : place_in_set(row);
  }
  return slot >= 0 ? slot : stage(table);
}

int64_t RowCache::place_hot(int64_t row) {
  if (filled_ < options_.fast_rows) {
    if (chosen_ && !is_hot(row)) replaceable_.push_back(static_cast<uint32_t>(filled_));
    return filled_++;
  }
  if (!chosen_ || !is_hot(row)) return -1;
  for (size_t i = replaceable_.size(); i-- > 0;) {
    const uint32_t slot = replaceable_[i];
    if ((flags_[slot] & kUsed) != 0) continue;
    replaceable_.erase(replaceable_.begin() + static_cast<int64_t>(i));
    return slot;
  }
  return -1;
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

int64_t RowCache::stage(std::string_view table) {
  user_check(staged_ < options_.staging_rows,
             "embedding: a step reads more than {} distinct rows of table \"{}\" that are not in "
             "the fast tier. Raise step_rows, or take smaller batches",
             options_.staging_rows, table);
  return options_.fast_rows + staged_++;
}

void RowCache::count(int64_t row) {
  if (++counts_[static_cast<size_t>(row)] == 0) high_counts_[row] += UINT16_MAX + 1;
}

void RowCache::choose_hot() {
  mark_hot();
  chosen_ = true;
  replaceable_.clear();
  for (int64_t slot = 0; slot < filled_; ++slot)
    if (!is_hot(row_in(slot))) replaceable_.push_back(static_cast<uint32_t>(slot));
  halve_counts();
}

/// Marks the rows above the count threshold. Rows at the threshold fill the remaining room, lowest
/// first.
void RowCache::mark_hot() {
  std::vector<int64_t> of_count(kMostCounted + 1);
  for (const uint16_t c : counts_) ++of_count[c];
  for (const auto& [row, high] : high_counts_) {
    --of_count[counts_[static_cast<size_t>(row)]];
    ++of_count[kMostCounted];
  }
  size_t threshold = kMostCounted;
  int64_t room = options_.fast_rows;
  for (; threshold > 0 && of_count[threshold] <= room; --threshold) room -= of_count[threshold];
  threshold = std::max<size_t>(1, threshold);
  std::fill(hot_.begin(), hot_.end(), 0);
  counted_ = counted_hot_ = 0;
  auto high = high_counts_.begin();
  for (int64_t row = 0; row < options_.rows; ++row) {
    int64_t all = counts_[static_cast<size_t>(row)];
    if (high != high_counts_.end() && high->first == row) all += (high++)->second;
    counted_ += all;
    const size_t compared = std::min(static_cast<size_t>(all), kMostCounted);
    if (compared < threshold || (compared == threshold && room-- <= 0)) continue;
    counted_hot_ += all;
    hot_[static_cast<size_t>(row / 64)] |= uint64_t{1} << (row % 64);
  }
}

void RowCache::halve_counts() {
  std::map<int64_t, int64_t> halved;
  for (const auto& [row, high] : high_counts_)
    halved[row] = (high + counts_[static_cast<size_t>(row)]) / 2;
  for (uint16_t& c : counts_) c /= 2;
  high_counts_.clear();
  for (const auto& [row, all] : halved) {
    counts_[static_cast<size_t>(row)] = static_cast<uint16_t>(all);
    if (const int64_t high = all - counts_[static_cast<size_t>(row)]; high > 0)
      high_counts_[row] = high;
  }
}

}  // namespace dovetail::embedding
