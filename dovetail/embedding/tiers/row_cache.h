#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "dovetail/embedding/pack/slot_map.h"

namespace dovetail::embedding {

/// Rule that decides which rows of a table stay in the fast tier (tiered.h). The fast tier has
/// `fast_rows` slots, which are places in memory for one row each. Each id in a step's batch is one
/// access of its row. A row keeps its slot until another row replaces it, or it is released. Rows
/// that a step accesses are not replaced in it. The rule applies when a step accesses a row without
/// a slot. A row that still gets no slot waits in the staging area (RowCache) until the step ends.
/// If the staging area is full, it replaces the row in the highest slot that the step does not use.
///
///   kHot  The most frequent rows stay:
///         1. If a slot is empty, the row takes it.
///         2. If no slot is empty, only a chosen row gets a slot. It replaces a row that is not
///            chosen: the one in the highest slot.
///
///         The table begins a choice after `warmup_steps` steps, and then every `refresh_steps`
///         steps. It chooses the `fast_rows` rows with the most accesses up to that step. Ties
///         choose the lower row. Then the counts of accesses of all rows are halved.
///
///         The work of a choice is spread over steps, the first one included:
///         1. Each step examines `sweep_rows` rows. After the last row, the choice applies.
///         2. From then on, each step examines `sweep_rows` / 16 slots, from the highest on. Only
///            examined slots, and slots that were filled since, give up their rows.
///
///         A choice that is due while step 1 or 2 of the previous choice goes on is left out.
///   kLru  The slots are divided into sets of kWays slots:
///         1. The hash of the row selects a set.
///         2. If a slot of the set is empty, the row takes it.
///         3. Otherwise it replaces the row of the set whose last access was in the earliest step.
///            Ties replace the row in the lower slot.
///   kLfu  Like kLru, but step 3 replaces the row with the fewest accesses since that row got its
///         slot.
enum class TierPolicy { kHot, kLru, kLfu };

/// Parses "hot", "lru" or "lfu". Throws UserError for another name.
TierPolicy parse_tier_policy(std::string_view name);

/// Sizes and rule of a RowCache.
struct RowCacheOptions {
  TierPolicy policy = TierPolicy::kHot;
  int64_t rows = 0;  ///< rows of the table
  /// Number of slots in the fast tier, whose rows stay between steps. For kLru and kLfu, it must be
  /// a multiple of kWays, unless it equals `rows`.
  int64_t fast_rows = 0;
  int64_t staging_rows = 0;  ///< number of slots in the staging area, for rows of one step only
  /// For kHot: steps before rows are first chosen, and steps from one choice to the next. If
  /// refresh_steps is 0, rows are chosen only once.
  int64_t warmup_steps = 0, refresh_steps = 0;
  /// For kHot: maximum number of rows that one step examines for a choice; at least 16.
  int64_t sweep_rows = int64_t{1} << 20;
  bool releases = false;  ///< true: rows may be released
};

/// Copies of rows through slot `slot` that the owner of a RowCache must make.
struct RowMove {
  int64_t slot;
  int64_t row;  ///< row whose data must come into the slot; -1: none
  /// Row whose data is still in the slot and has changed there. The owner must write it to the slow
  /// tier first. -1: there is no such row.
  int64_t evicted;
};

/// Map from a table's rows to slots. A slot is a place in memory for one row. The map handles only
/// the numbers of rows and slots; its owner copies the data. Slots [0, fast_rows) are the fast
/// tier: they keep their rows between steps. Slots [fast_rows, fast_rows + staging_rows) are the
/// staging area: they hold rows of the current step. The slot of a row depends only on the ids of
/// all steps so far.
class RowCache {
 public:
  static constexpr int64_t kWays = 16;
  /// Id that has no row. It is no access, and its slot is the one after the staging area.
  static constexpr int64_t kNoId = -1;

  explicit RowCache(const RowCacheOptions& options);

  /// Returns the bytes that a RowCache with these options takes.
  static int64_t bytes_for(const RowCacheOptions& options);

  /// Part of a batch: `count` ids, which are rows of the table.
  struct Ids {
    const int64_t* ids;
    int64_t* slots;  ///< output: slot of each id
    int64_t count;
  };

  /// Begins a step: gives a slot to the row of each id, and writes the slots to Ids::slots. Appends
  /// to `moves` the rows whose data is not in their slots yet. The owner must copy this data before
  /// it uses the slots. A row that one move brings in is not evicted by another move. Throws
  /// UserError, naming `table`, if the step has more distinct rows than there are slots.
  void begin(const std::vector<Ids>& ids, std::string_view table, std::vector<RowMove>& moves);

  /// Finds the slots of ids between steps, for a lookup that leaves no trace. No access is counted,
  /// and no row is evicted. Rows without a slot are assigned to empty slots, for this lookup only.
  /// Appends these rows to `moves`; the owner must copy them in before the lookup. Returns false if
  /// there are too few empty slots.
  bool look_up(const std::vector<Ids>& ids, std::vector<RowMove>& moves) const;

  /// Ends the step. `changed` tells whether the step has changed the data of its rows. If so
  /// (kChanged), appends the step's rows in the staging area to `leaving`, as RowMove::evicted. The
  /// owner must write them from their slots to the slow tier before the next `begin`, which reuses
  /// the slots.
  enum class Rows { kSame, kChanged };
  void end(Rows changed, std::vector<RowMove>& leaving);

  /// Takes a row out of its slot, if it has one, and forgets its accesses. Its data is lost. The
  /// options must have `releases`. Call it between steps.
  void release(int64_t row);

  /// Returns the slot of a row, or -1 if the row has none.
  int64_t find(int64_t row) const;
  /// Returns true if the row in a slot has changed since it got the slot or since set_unchanged.
  bool changed(int64_t slot) const { return (flags_[static_cast<size_t>(slot)] & kDirty) != 0; }
  void set_unchanged(int64_t slot) {
    flags_[static_cast<size_t>(slot)] &= static_cast<uint8_t>(~kDirty);
  }
  /// Returns the row in a slot, or -1 if the slot is empty.
  int64_t row_in(int64_t slot) const;

  /// Returns an array that gives the row in each slot, or UINT32_MAX if the slot is empty. The
  /// array's address never changes.
  const uint32_t* rows_in() const { return row_of_.data(); }

  /// Returns the number of accesses of rows that had a slot when their step began.
  int64_t hits() const { return hits_; }
  /// Returns the number of accesses of rows that had no slot when their step began.
  int64_t misses() const { return misses_; }
  /// Returns the sum over all rows of their access counts when kHot last began a choice. Each
  /// earlier choice had halved the counts.
  int64_t counted() const { return counted_; }
  /// Returns the part of counted() that belongs to the chosen rows. Divided by counted(), it is the
  /// best hit rate that `fast_rows` fixed rows can have on these accesses.
  int64_t counted_hot() const { return counted_hot_; }

 private:
  static constexpr uint8_t kUsed = 1, kDirty = 2;
  static constexpr uint32_t kNoRow = UINT32_MAX;

  bool holds_all() const { return options_.fast_rows == options_.rows; }
  int64_t slots() const { return options_.fast_rows + options_.staging_rows; }
  bool counts() const { return options_.policy == TierPolicy::kHot && !holds_all(); }
  bool is_hot(int64_t row) const { return (counts_[static_cast<size_t>(row)] & hot_bit_) != 0; }
  void use(int64_t slot);
  void count(int64_t row);
  int64_t place(int64_t row, std::string_view table);
  int64_t place_hot(int64_t row);
  int64_t place_in_set(int64_t row) const;
  int64_t place_anywhere(int64_t row, std::string_view table);
  int64_t take_replaceable();
  void mark_replaceable(int64_t slot);
  int64_t accesses(int64_t row) const;
  int64_t take_empty_slot();
  void forget_accesses(int64_t row);
  void begin_choice();
  void find_threshold();
  void halve_histogram();
  void settle(int64_t row);
  void decide_tie(int64_t row);
  void sweep();
  bool settle_block(int64_t first);
  void apply_choice();
  void examine_slots();

  RowCacheOptions options_;
  SlotMap<uint32_t> map_;
  std::vector<uint32_t> row_of_;  // this and the next two have one element for each slot
  std::vector<uint8_t> flags_;    // kUsed: this step uses the slot; kDirty: its row has changed
  // kLru: step of the last access of the slot's row. kLfu: number of its accesses.
  std::vector<uint32_t> rank_;
  std::vector<int64_t> used_;  // slots that this step uses
  /// Slots below filled_ that are empty, since their rows were released. Sets need no list.
  std::vector<uint32_t> empty_;
  int64_t step_ = 0, filled_ = 0, staged_ = 0;
  int64_t overflow_ = 0;  ///< the step uses all fast slots from here on

  // The members from here on are for kHot only, except the last line.
  //
  // Word of a row in counts_: its accesses below kHigh, and flags. kHigh: high_counts_ has the rest
  // of the accesses, a multiple of kHigh. kHotBits[p]: chosen by the last choice of parity p.
  // kEpoch: parity of the last choice that has settled the row. To settle a row means to decide
  // about it and to halve its accesses.
  static constexpr uint16_t kEpoch = 1 << 15, kHotBits[2] = {1 << 14, 1 << 13}, kHigh = 1 << 10,
                            kLow = kHigh - 1;
  std::vector<uint16_t> counts_;
  std::map<int64_t, int64_t> high_counts_;
  /// histogram_[c]: rows with c accesses and without kHigh. Rows that the choice in progress has
  /// not settled count as if they were.
  std::vector<uint32_t> histogram_;
  uint16_t epoch_ = 0;    ///< kEpoch of settled rows
  uint16_t hot_bit_ = 0;  ///< flag of the rows of the choice that applies; 0: none does yet
  // State of the choice in progress. Rows with more accesses than threshold_ are chosen, and the
  // lowest room_ rows with exactly as many.
  int64_t threshold_ = 0, room_ = 0;
  int64_t swept_ = 0;  ///< rows [0, swept_) are settled; all rows: no choice is in progress
  std::set<int64_t> ties_ahead_;  ///< settled rows from swept_ on with threshold_ accesses
  int64_t examined_ = 0;          ///< slots [0, examined_) are not examined yet
  // replaceable_: bitmap of slots that may give up their rows. Words above highest_word_ are 0.
  // Words above next_word_ have slots of the current step only.
  std::vector<uint64_t> replaceable_;
  int64_t highest_word_ = -1, next_word_ = -1;
  int64_t hits_ = 0, misses_ = 0, counted_ = 0, counted_hot_ = 0;
};

}  // namespace dovetail::embedding
