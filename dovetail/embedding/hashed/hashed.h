#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dovetail/embedding/pack/changed_rows.h"
#include "dovetail/embedding/pack/jagged.h"
#include "dovetail/embedding/pack/slot_map.h"
#include "dovetail/embedding/pack/table.h"

namespace dovetail::embedding {

/// Which keys get a row.
///   kAlways       Each, in the first step that it occurs in.
///   kCount        In the step in which it has occurred `min_count` times, those of that step
///   counted. kProbability  In a step in which it occurs c times, with probability 1 - (1 -
///   probability)^c: as if each
///                 occurrence were drawn alone. The draw is a function of (seed, name of the table,
///                 key, step).
enum class Admission { kAlways, kCount, kProbability };

/// Which rows leave, with their optimizer's state, at the end of every `evict_steps`th step.
///   kNone       None.
///   kAge        Those that last occurred more than `max_age` steps ago.
///   kFrequency  If there are more than `keep_rows`, those of fewest occurrences (of equals those
///   that occurred longest
///               ago, then those of lower keys), until `keep_rows` are left. Then the occurrences
///               of all are halved, whether any has left or not, so that a key does not stay for
///               what it once was.
enum class Eviction { kNone, kAge, kFrequency };

/// "always", "count", "probability"; "none", "age", "frequency". Throw UserError for another name.
Admission parse_admission(std::string_view name);
Eviction parse_eviction(std::string_view name);

struct HashedOptions {
  Admission admission = Admission::kAlways;
  int64_t min_count = 2;  ///< of Admission::kCount
  int64_t max_candidates =
      0;  ///< of Admission::kCount: keys of a table that are counted without having a row
  double probability = 0.1;  ///< of Admission::kProbability
  Eviction eviction = Eviction::kNone;
  int64_t evict_steps = 1000;
  int64_t max_age = 100000;  ///< of Eviction::kAge, and always of candidates
  int64_t keep_rows = 0;     ///< of Eviction::kFrequency, of each table
};

/// What became of keys since the tables were made; sums over the tables. `rows`, `candidates` and
/// the `bytes` that they take are those there are now, the others count occurrences of keys, but
/// `admitted`, `evicted` and `candidates_evicted`, which count keys.
struct HashedCounters {
  int64_t rows = 0, candidates = 0, bytes = 0;
  int64_t found = 0;         ///< had a row when their step began
  int64_t admitted = 0;      ///< got one
  int64_t not_admitted = 0;  ///< have none by Admission
  int64_t refused_full = 0;  ///< were to be admitted, but the table has all the `rows` it may have
  int64_t refused_memory =
      0;  ///< were to be admitted, but the table has all that fit into its max_bytes
  int64_t refused_candidates = 0;  ///< are not even counted, as there are max_candidates
  int64_t evicted = 0, candidates_evicted = 0;
};

/// All of them by name, those that there are now first.
inline constexpr size_t kPresentCounters = 3;
inline constexpr std::array<std::pair<std::string_view, int64_t HashedCounters::*>, 11>
    kHashedCounters = {{
        {"rows", &HashedCounters::rows},
        {"candidates", &HashedCounters::candidates},
        {"bytes", &HashedCounters::bytes},
        {"found", &HashedCounters::found},
        {"admitted", &HashedCounters::admitted},
        {"not_admitted", &HashedCounters::not_admitted},
        {"refused_full", &HashedCounters::refused_full},
        {"refused_memory", &HashedCounters::refused_memory},
        {"refused_candidates", &HashedCounters::refused_candidates},
        {"evicted", &HashedCounters::evicted},
        {"candidates_evicted", &HashedCounters::candidates_evicted},
    }};

HashedCounters operator+(HashedCounters a, const HashedCounters& b);

/// Keys, ascending (of 64 bits without a sign), and how often and when they occurred: (n) int64
/// each.
struct KeyCounts {
  at::Tensor keys;  ///< their bits
  at::Tensor
      occurrences;  ///< as Eviction::kFrequency and Admission::kCount count them, as of last_step
  at::Tensor last_step;  ///< the step in which the key last occurred
  /// (m) int64, ascending alike: with RowSet::kChanged, keys that were there when changes were last
  /// forgotten and are not now.
  at::Tensor removed = {};
};

/// All that belongs to a table, or what of it has changed: keys that occurred.
struct KeyedRows {
  KeyCounts known;
  at::Tensor
      weight;  ///< of each known key its row as it is stored, (n, stored_width) of stored_type
  at::Tensor state;      ///< (n, state_per_row) float32
  KeyCounts candidates;  ///< keys that are counted without having a row
};

/// Tables without a fixed vocabulary: ids are keys of 64 bits, which get rows as they occur. The
/// `rows` of a TableSpec are the most that it may have: memory is reserved for them, and taken from
/// the system as they fill. With a max_bytes a table has no more rows either than fit into it
/// beside all that belongs to them and to max_candidates candidates: state, the map of keys (whole
/// from the beginning), counts, and what a delta has to know. Of a step,
///
///     const Jagged slots = tables.begin(keys);   // keys are admitted
///     pool(tables.packed(), slots), update(tables.packed(), {{slots, gradient}})  // or
///     samples_of(slots, ...) of them tables.end();                              // rows leave
///
/// A row begins as InitialRows has it for its key within initial_bound(rows) (of the whole table,
/// where it is a part of one), whenever and wherever the key comes first; so does one that has left
/// and comes again. A key without a row reads zeros, and its gradient goes nowhere (as in DeepRec's
/// EmbeddingVariable); a mean counts it. Results do not depend on the number of threads.
class HashedTables {
 public:
  /// Throws UserError as PackedTables, for options out of their range and for a max_bytes that no
  /// row fits into.
  HashedTables(const PackSpec& spec, const HashedOptions& options,
               Changes changes = Changes::kUntracked);

  /// The spec as given; each table of packed() has one row more, its first, of zeros.
  const PackSpec& spec() const { return spec_; }
  const HashedOptions& options() const { return options_; }

  /// The batch with rows of packed() instead of keys. One step at a time. Throws UserError as
  /// check_jagged.
  Jagged begin(const Jagged& keys);
  PackedTables& packed() { return packed_; }
  const PackedTables& packed() const { return packed_; }
  void end();

  /// The same for a lookup without an update, as in evaluation: nothing is admitted or counted.
  /// Throws UserError as check_jagged.
  Jagged find(const Jagged& keys) const;

  /// Between steps: all there is of a table, and the way back. load throws UserError for shapes
  /// that do not fit, keys that are there twice and more of them than the table may have. With
  /// RowSet::kChanged, the keys that occurred in a step since forget_changes, and those that have
  /// left.
  KeyedRows contents(int64_t table, RowSet which = RowSet::kAll) const;
  void load(int64_t table, const KeyedRows& contents);
  /// A checkpoint holds what there is. Nothing where changes are not tracked.
  void forget_changes();

  /// Steps that have ended, with which last_step counts.
  int64_t steps() const { return step_; }
  void set_steps(int64_t steps) { step_ = steps; }

  HashedCounters counters() const;
  /// Bytes in use: rows and state that are taken, maps, candidates. What a step needs for its new
  /// keys is not in it.
  int64_t memory_bytes() const;
  /// The most rows that a table may have, by its rows and its max_bytes.
  int64_t most_rows(int64_t table) const { return tables_.at(static_cast<size_t>(table))->rows; }

 private:
  static constexpr uint32_t kNone = SlotMap<uint64_t>::kNone;

  /// Keys, each with an entry that keeps its number while it is there.
  class Keys {
   public:
    struct Entry {
      uint64_t key = 0;
      int64_t occurrences = 0, last_step = 0;  // of KeyCounts
      bool taken = false;
      bool changed = false, saved = false;  // since, and when, changes were last forgotten
    };

    Keys() : map_(kFewKeys) {}
    /// Room for `most` keys at once: what they need later is taken now, or reserved.
    Keys(int64_t most, Changes changes);
    /// What Keys(most, changes) take when they are full.
    static int64_t bytes_for(int64_t most, Changes changes);
    uint32_t find(uint64_t key) const { return map_.find(key); }
    void prefetch(uint64_t key) const { map_.prefetch(key); }
    uint32_t insert(uint64_t key);
    void erase(uint32_t number);
    int64_t size() const { return map_.size(); }
    /// Of each number up to now, whether taken or not.
    std::vector<Entry>& entries() { return entries_; }
    const std::vector<Entry>& entries() const { return entries_; }
    int64_t bytes() const;
    void clear();
    /// The numbers that are taken, by their keys.
    std::vector<int64_t> ascending(RowSet which) const;
    KeyCounts counts(const std::vector<int64_t>& numbers) const;
    void load(const KeyCounts& counts, const std::string& table);
    void forget_changes();

   private:
    static constexpr int64_t kFewKeys = 16;

    int64_t most_ = 0;  // of which room was made; 0: grows
    Changes changes_ = Changes::kUntracked;
    SlotMap<uint64_t> map_;
    std::vector<Entry> entries_;
    std::vector<uint32_t> free_;     // the last is taken first
    std::vector<uint64_t> removed_;  // since changes were last forgotten; some may have come again
  };

  struct Table {
    Table(const InitialRows& initial, uint64_t seed) : initial(initial), admission_seed(seed) {}

    InitialRows initial;
    uint64_t admission_seed;
    int64_t rows = 0, row_bytes = 0, state_width = 0;
    bool capped = false;     // rows follow from max_bytes
    char* stored = nullptr;  // of packed_
    float* state = nullptr;  // of packed_
    at::Tensor rows_held;    // (rows + 1) int32: of each row what its key is rounded by
    Keys keys, candidates;   // the row of entry i is i + 1
    HashedCounters counters;
  };
  /// A key of a step that has no row when that begins.
  struct NewKey {
    uint64_t key;
    int64_t count;
  };

  /// Bytes of a table with so many rows, and of the rows that fit into its max_bytes, at most
  /// table.rows.
  static int64_t bytes_for(const PackSpec& spec, const TableSpec& table,
                           const HashedOptions& options, Changes changes, int64_t rows);
  static int64_t rows_within(const PackSpec& spec, const TableSpec& table,
                             const HashedOptions& options, Changes changes);
  static PackSpec packed_spec(PackSpec spec, const HashedOptions& options, Changes changes);
  void begin_table(int64_t t, const Jagged& keys, int64_t* slots);
  uint32_t admit(Table& table, const NewKey& key);
  bool is_admitted(Table& table, const NewKey& key) const;
  void evict(Table& table) const;
  /// Of a key with a row, its occurrences after those of `steps` steps.
  int64_t occurrences_after(const Keys::Entry& entry, int64_t steps) const;
  void evict_candidates(Table& table) const;
  void clear_null_row(Table& table) const;
  void initialize_row(const Table& table, uint64_t key, uint32_t number) const;
  static void hold(const Table& table, uint64_t key, int64_t row);

  PackSpec spec_;
  HashedOptions options_;
  Changes changes_;
  PackedTables packed_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<int64_t> feature_rows_;
  bool in_step_ = false;
  int64_t step_ = 0;
};

}  // namespace dovetail::embedding
