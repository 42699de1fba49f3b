#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "dovetail/embedding/pack/slot_map.h"

namespace dovetail::embedding {

/// Rule that decides which rows of a table stay in the fast tier, which is in memory (tiered.h).
/// Each id in a step's batch is one access of its row. A slot is a place in memory for one row.
///   kHot  The most frequent rows stay. For `warmup_steps` steps, new rows take free slots. Then,
///         and every `refresh_steps` steps, the `fast_rows` rows with the most accesses so far are
///         chosen. Ties prefer the lower row. After each choice, the counts of accesses are
///         halved. A chosen row that is not in a slot comes in at its next access. It replaces the
///         row in the highest slot that holds no chosen row. Other rows pass through the staging
///         area unless a slot is empty.
///   kLru  Set-associative: the slots are divided into sets of kWays, and a row's hash selects its
///         set. A full set evicts the row whose last access was in the earliest step.
///   kLfu  Set-associative. A full set evicts the row with the fewest accesses since it came in.
///
/// Ties in a set evict the lower slot. Rows of the current step are never evicted. A row that finds
/// no place for this reason passes through the staging area.
enum class TierPolicy { kHot, kLru, kLfu };

/// Parses "hot", "lru" or "lfu". Throws UserError for another name.
TierPolicy parse_tier_policy(std::string_view name);

/// Sizes of a RowCache and its rule.
struct RowCacheOptions {
  TierPolicy policy = TierPolicy::kHot;
  int64_t rows = 0;  ///< rows of the table
  /// Number of slots whose rows stay between steps. For kLru and kLfu a multiple of kWays, unless
  /// it equals `rows`.
  int64_t fast_rows = 0;
  int64_t staging_rows = 0;  ///< number of slots for rows that only one step needs
  /// For kHot: steps before the first choice, and steps between later choices (0: no later choice).
  int64_t warmup_steps = 0, refresh_steps = 0;
};

/// Row that the owner of a RowCache must copy into a slot.
struct RowMove {
  int64_t slot, row;
  /// Row that was in the slot and has changed there: the owner must write it back first. -1: none.
  int64_t evicted;
};

/// Map from a table's rows to slots. It handles integers only; its owner copies the rows. Slots [0,
/// fast_rows) are the fast tier: they keep their rows between steps. Slots [fast_rows, fast_rows +
/// staging_rows) are the staging area: they hold rows of the current step. A row's slot is a
/// function of the ids of all steps so far.
class RowCache {
 public:
  static constexpr int64_t kWays = 16;

  explicit RowCache(const RowCacheOptions& options);

  /// Returns the bytes that a RowCache with these options takes.
  static int64_t bytes_for(const RowCacheOptions& options);

  /// Part of a batch: `count` ids, which are rows of the table.
  struct Ids {
    const int64_t* ids;
    int64_t* slots;  ///< output: slot of each id
    int64_t count;
  };

  /// Begins a step. Writes the slot of each id. Appends to `moves` the rows that are not in their
  /// slots yet. The owner must copy them in before it uses the slots. No move evicts a row that
  /// another move brings. Throws UserError, naming `table`, if the staging area is full.
  void begin(const std::vector<Ids>& ids, std::string_view table, std::vector<RowMove>& moves);

  /// Finds the slots of ids between steps, for a lookup that leaves no trace. It counts no access
  /// and evicts no row. Rows without a slot get slots that are empty between steps. `moves`
  /// receives these rows; the owner must copy them in before the lookup. Returns false if there are
  /// too few empty slots.
  bool look_up(const std::vector<Ids>& ids, std::vector<RowMove>& moves) const;

  /// Ends the step. `changed` tells if the step has changed its rows in their slots. If it is
  /// kChanged, appends the rows of the staging area to `passed`. The owner must write them from
  /// their slots to the slow tier before the next begin.
  enum class Rows { kSame, kChanged };
  void end(Rows changed, std::vector<RowMove>& passed);

  /// Returns the slot of a row, or -1.
  int64_t find(int64_t row) const;
  /// Returns true if the row in a slot has changed since it came in or since set_unchanged.
  bool changed(int64_t slot) const { return (flags_[static_cast<size_t>(slot)] & kDirty) != 0; }
  void set_unchanged(int64_t slot) {
    flags_[static_cast<size_t>(slot)] &= static_cast<uint8_t>(~kDirty);
  }
  /// Returns the row in a slot, or -1.
  int64_t row_in(int64_t slot) const;

  /// Returns an array with the row in each slot; UINT32_MAX if the slot is empty. Its address does
  /// not change.
  const uint32_t* rows_in() const { return row_of_.data(); }

  /// Returns the number of accesses of rows that had a slot when their step began.
  int64_t hits() const { return hits_; }
  /// Returns the number of all other accesses.
  int64_t misses() const { return misses_; }
  /// Returns the sum of all rows' counts of accesses at the last choice of kHot.
  int64_t counted() const { return counted_; }
  /// Returns the same sum over the chosen rows only. Its ratio to counted() is the best hit rate
  /// that `fast_rows` fixed rows can have on the counted accesses.
  int64_t counted_hot() const { return counted_hot_; }

 private:
  static constexpr uint8_t kUsed = 1, kDirty = 2;
  static constexpr uint32_t kNoRow = UINT32_MAX;

  bool holds_all() const { return options_.fast_rows == options_.rows; }
  bool counts() const { return options_.policy == TierPolicy::kHot && !holds_all(); }
  bool is_hot(int64_t row) const {
    return (hot_[static_cast<size_t>(row / 64)] >> (row % 64) & 1) != 0;
  }
  void use(int64_t slot);
  void count(int64_t row);
  int64_t place(int64_t row, std::string_view table);
  int64_t place_hot(int64_t row);
  int64_t place_in_set(int64_t row) const;
  int64_t stage(std::string_view table);
  void choose_hot();
  void mark_hot();
  void halve_counts();

  RowCacheOptions options_;
  SlotMap<uint32_t> map_;
  std::vector<uint32_t> row_of_;  // this and the next two have one element for each slot
  std::vector<uint8_t> flags_;    // kUsed: this step uses the slot; kDirty: its row has changed
  std::vector<uint32_t> rank_;    // kLru: step of the row's last access; kLfu: its accesses
  std::vector<int64_t> used_;     // slots that this step uses
  int64_t step_ = 0, filled_ = 0, staged_ = 0;
  // kHot only. counts_: low 16 bits of each row's count of accesses. high_counts_: the rest of the
  // count, by row (few rows have any). hot_: bitmap of the chosen rows. replaceable_: slots of rows
  // that are not chosen.
  std::vector<uint16_t> counts_;
  std::map<int64_t, int64_t> high_counts_;
  std::vector<uint64_t> hot_;
  std::vector<uint32_t> replaceable_;
  bool chosen_ = false;
  int64_t hits_ = 0, misses_ = 0, counted_ = 0, counted_hot_ = 0;
};

}  // namespace dovetail::embedding
