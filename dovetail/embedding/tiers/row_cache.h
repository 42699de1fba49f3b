#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "dovetail/embedding/pack/slot_map.h"

namespace dovetail::embedding {

/// Which rows stay in the fast tier.
///   kHot  The most frequent. Until the warm-up ends, rows stay as they come while there is room.
///   Then, and every
///         refresh after, the `fast_rows` rows of most accesses so far are chosen (of equals the
///         lower), and counts are halved. A chosen row that is not there comes in at its next
///         access, for the one that is not chosen in the highest slot. The others pass through the
///         staging area while no slot is empty.
///   kLru  Set-associative: a row's set is its hash; of a full set, the row leaves whose last step
///   is longest ago. kLfu  Set-associative: the row leaves that had the fewest accesses since it
///   came in.
/// Of equals in a set, the one in the lower slot leaves. Rows of the step itself never leave; a row
/// for which there is then no place passes through the staging area.
enum class TierPolicy { kHot, kLru, kLfu };

/// "hot", "lru", "lfu". Throws UserError for another name.
TierPolicy parse_tier_policy(std::string_view name);

struct RowCacheOptions {
  TierPolicy policy = TierPolicy::kHot;
  int64_t rows = 0;  ///< of the table
  int64_t fast_rows =
      0;  ///< slots whose rows stay; of kLru and kLfu a multiple of kWays, unless it is all rows
  int64_t staging_rows = 0;
  int64_t warmup_steps = 0, refresh_steps = 0;  ///< of kHot
};

/// A row that a step brings in.
struct RowMove {
  int64_t slot, row;
  int64_t evicted;  ///< the row that was in the slot and has changed since it came; or -1
};

/// Which rows of a table are in which slots: integers only, the rows themselves are moved by who
/// owns them. Slots [0, fast_rows) hold rows that stay, [fast_rows, fast_rows + staging_rows) those
/// of one step. Slots are a function of the ids of all steps so far.
class RowCache {
 public:
  static constexpr int64_t kWays = 16;

  explicit RowCache(const RowCacheOptions& options);

  /// What one with these options takes, in bytes.
  static int64_t bytes_for(const RowCacheOptions& options);

  struct Ids {
    const int64_t* ids;
    int64_t* slots;  ///< where their slots are written
    int64_t count;
  };

  /// The slots of a step's ids, and in `moves` the rows to be brought into them first; the evicted
  /// of one move is no row that another brings. Throws UserError, naming `table`, when the staging
  /// area has no room.
  void begin(const std::vector<Ids>& ids, std::string_view table, std::vector<RowMove>& moves);

  /// Slots of ids outside a step, for a lookup that leaves no trace: nothing is counted, and no row
  /// comes or goes. In `moves` the rows to bring first into slots that are empty between steps.
  /// Returns false if there are too few.
  bool look_up(const std::vector<Ids>& ids, std::vector<RowMove>& moves) const;

  /// Ends the step. Rows that passed through are appended to `passed` if `changed`: they have to be
  /// written from their slots before the next begin.
  enum class Rows { kSame, kChanged };
  void end(Rows changed, std::vector<RowMove>& passed);

  /// The slot of a row that stays, or -1.
  int64_t find(int64_t row) const;
  bool changed(int64_t slot) const { return (flags_[static_cast<size_t>(slot)] & kDirty) != 0; }
  void set_unchanged(int64_t slot) {
    flags_[static_cast<size_t>(slot)] &= static_cast<uint8_t>(~kDirty);
  }
  /// The row in a slot, or -1.
  int64_t row_in(int64_t slot) const;

  /// Of each slot; a slot without a row has UINT32_MAX. It stays where it is.
  const uint32_t* rows_in() const { return row_of_.data(); }

  int64_t hits() const {
    return hits_;
  }  ///< accesses of rows that were there when their step began
  int64_t misses() const { return misses_; }  ///< all other accesses
  /// Of the counts at the last choice of kHot: all, and those of the rows chosen, whose ratio is
  /// the best hit rate that any choice of so many rows can have on these accesses.
  int64_t counted() const { return counted_; }
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
  std::vector<uint32_t> row_of_;  // and the next two: of each slot
  std::vector<uint8_t> flags_;
  std::vector<uint32_t> rank_;  // kLru: the last step; kLfu: accesses
  std::vector<int64_t> used_;   // slots of this step
  int64_t step_ = 0, filled_ = 0, staged_ = 0;
  // kHot: accesses of each row, their low 16 bits and, for the few rows that have more, the rest;
  // the rows chosen; the slots of rows that are not.
  std::vector<uint16_t> counts_;
  std::map<int64_t, int64_t> high_counts_;
  std::vector<uint64_t> hot_;
  std::vector<uint32_t> replaceable_;
  bool chosen_ = false;
  int64_t hits_ = 0, misses_ = 0, counted_ = 0, counted_hot_ = 0;
};

}  // namespace dovetail::embedding
