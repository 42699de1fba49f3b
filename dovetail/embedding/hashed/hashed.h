#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dovetail/embedding/pack/changed_rows.h"
#include "dovetail/embedding/pack/jagged.h"
#include "dovetail/embedding/pack/slot_map.h"
#include "dovetail/embedding/pack/table.h"
#include "dovetail/embedding/tiers/slot_mover.h"
#include "dovetail/embedding/tiers/tiered.h"

namespace dovetail::embedding {

/// Rule that decides which keys are admitted to a hashed table (see HashedTables). An admitted key
/// gets a row. A key occurs once for each id in a batch that equals it.
///   kAlways       A key is admitted in the first step in which it occurs.
///   kCount        A key is admitted in the step in which its occurrences reach `min_count`.
///                 Occurrences in this step count. Until then, the key is a candidate: it is
///                 counted but has no row.
///   kProbability  A key with c occurrences in a step is admitted with probability 1 - (1 -
///                 probability)^c, as if each occurrence were drawn separately. The random number
///                 is a function of (seed, name of the table, key, step).
enum class Admission { kAlways, kCount, kProbability };

/// Rule that decides which keys are evicted, with their rows and optimizer state. It applies at the
/// end of each `evict_steps`th step.
///   kNone       No row is evicted.
///   kAge        Rows that last occurred more than `max_age` steps ago are evicted.
///   kFrequency  The rows with the fewest occurrences are evicted until `keep_rows` are left. Ties:
///               the row that occurred longest ago first, then the lower key. Then all occurrence
///               counts are halved, even if no row was evicted. So old popularity fades.
enum class Eviction { kNone, kAge, kFrequency };

/// Parse "always", "count", "probability" and "none", "age", "frequency". Throw UserError for
/// another name.
Admission parse_admission(std::string_view name);
Eviction parse_eviction(std::string_view name);

/// Rules and limits of hashed tables.
struct HashedOptions {
  Admission admission = Admission::kAlways;
  int64_t min_count = 2;  ///< for Admission::kCount: occurrences that admit a key
  /// For Admission::kCount: maximum number of candidates of a table.
  int64_t max_candidates = 0;
  double probability = 0.1;  ///< for Admission::kProbability: probability for each occurrence
  Eviction eviction = Eviction::kNone;
  int64_t evict_steps = 1000;  ///< steps between evictions of rows and candidates
  /// For Eviction::kAge: maximum number of steps since a row's key last occurred. With every
  /// eviction rule, candidates that last occurred more steps ago are evicted too.
  int64_t max_age = 100000;
  int64_t keep_rows = 0;  ///< for Eviction::kFrequency: rows of each table that an eviction leaves
};

/// Counters, summed over the tables. `rows` and `candidates` are the present numbers of rows and of
/// candidates. `bytes` is the memory that both use now (memory_bytes). All other counters count
/// since construction. `admitted`, `evicted` and `candidates_evicted` count keys. The remaining
/// ones count occurrences of keys.
struct HashedCounters {
  int64_t rows = 0, candidates = 0, bytes = 0;
  int64_t found = 0;         ///< occurrences of keys that had a row when their step began
  int64_t admitted = 0;      ///< keys that got a row
  int64_t not_admitted = 0;  ///< occurrences of keys that the admission rule did not admit
  /// Occurrences of keys that the rule admits but that get no row: the table already has
  /// TableSpec::rows keys.
  int64_t refused_full = 0;
  /// Occurrences of keys that the rule admits but that get no row: no more rows fit into max_bytes.
  int64_t refused_memory = 0;
  /// Occurrences of keys that did not become candidates: there are max_candidates already.
  int64_t refused_candidates = 0;
  int64_t evicted = 0, candidates_evicted = 0;  ///< rows and candidates that were evicted
};

/// All counters with their names. The first kPresentCounters entries are current values.
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

/// Returns the sum of each counter.
HashedCounters operator+(HashedCounters a, const HashedCounters& b);

/// List of n keys in ascending order of their 64 bits as unsigned numbers, with their occurrence
/// counts and steps. Each tensor is (n) int64, except `removed`.
struct KeyCounts {
  at::Tensor keys;  ///< the 64 bits of each key
  /// Occurrence counts for Eviction::kFrequency and Admission::kCount, as they were at last_step.
  at::Tensor occurrences;
  at::Tensor last_step;  ///< step in which the key last occurred
  /// Removed keys, (m) int64, ascending like `keys`. They were present at the last forget_changes,
  /// but are not present any more. Delta checkpoints need them.
  at::Tensor removed = {};
};

/// Contents of a hashed table: all of its keys, or those that changed (RowSet).
struct KeyedRows {
  KeyCounts known;  ///< keys that have a row
  /// Stored row of each known key, (n, stored_width) of stored_type (row_format.h).
  at::Tensor weight;
  at::Tensor state;      ///< optimizer state of each known key, (n, state_per_row) float32
  KeyCounts candidates;  ///< keys that are counted but have no row
};

/// Hashed tables: tables without a fixed vocabulary. Ids are 64-bit keys, and a key gets a row when
/// it is admitted (see Admission). The `rows` of a TableSpec are the maximum number of rows.
/// Address space for all of them is reserved at once. The system provides memory when rows are
/// first used. `max_bytes` of a TableSpec, if set, also limits the number of rows. These bytes must
/// hold:
/// - the rows and their optimizer state,
/// - the occurrence counts,
/// - the key map, which has its full size from the start,
/// - `max_candidates` candidates,
/// - the records for delta checkpoints.
///
/// The rows may be on a GPU. Key map, counts and candidates are on the CPU, and so are keys and row
/// numbers in a Jagged. The initial values of a step's new rows are one transfer to the GPU. GPU
/// memory for all rows is taken at once. max_bytes limits the number of rows as on the CPU.
///
/// With tiers (tiered.h), a key's row number is the number of a row in the tiers. Only some rows
/// are in memory. Key map, counts and candidates always are. Then TierOptions::memory_bytes covers
/// all of these at their maximum sizes, and the rows in memory. With rows on a GPU, it covers the
/// rows on the GPU alone. `max_bytes` limits the number of rows as it does without tiers. Results
/// are the same with and without tiers, bit for bit.
///
/// Usage:
///
/// ```
/// const Jagged slots = tables.begin(keys);  // admits keys, turns keys into rows of packed()
/// pool(tables.packed(), slots);
/// update(tables.packed(), {{slots, gradient}});  // or micro-batches samples_of(slots, ...)
/// tables.end();  // evicts rows
/// ```
///
/// A new row has the values of InitialRows (table.h) for its key. The bound of the values is
/// initial_bound(table). The values do not depend on when or where the key first
/// occurs. If an evicted key returns, its row starts with the same values again. A key without a
/// row reads zeros, and its gradient is discarded, as in DeepRec's EmbeddingVariable. Yet the key
/// counts in the number of ids by which a mean is divided. Results do not depend on the number of
/// threads.
class HashedTables {
 public:
  /// Throws UserError like PackedTables. Also throws it for options out of range, and if not even
  /// one row fits into max_bytes. With tiers, throws it like memory_left for least_memory.
  HashedTables(const PackSpec& spec, const HashedOptions& options,
               Changes changes = Changes::kUntracked, const std::optional<TierOptions>& tiers = {},
               SlotMemory memory = {});
  HashedTables(const HashedTables&) = delete;  // mover_ refers to packed_
  HashedTables& operator=(const HashedTables&) = delete;

  /// Returns what each table needs at least (tiered.h). `keys` are the bytes of key map, counts and
  /// candidates at their maximum sizes. They are 0 if the rows are apart (SlotMemory).
  static std::vector<TableMemory> least_memory(const PackSpec& spec, const HashedOptions& options,
                                               Changes changes, const TierOptions& tiers,
                                               bool apart = false);

  /// Returns the spec that the constructor got.
  const PackSpec& spec() const { return spec_; }
  const HashedOptions& options() const { return options_; }

  /// Begins a step and admits keys. Returns the batch with row numbers of packed() instead of keys.
  /// Steps must not overlap. Throws UserError like check_jagged and, with tiers, like
  /// TieredTables::begin.
  Jagged begin(const Jagged& keys);
  /// Returns the rows in memory. One row of each table is all zeros and stands for every key
  /// without a row. Without tiers, it is row 0. With tiers, packed() is TieredTables::fast().
  PackedTables& packed() { return tiers_ ? tiers_->fast() : *packed_; }
  const PackedTables& packed() const { return tiers_ ? tiers_->fast() : *packed_; }
  /// Returns null without tiers.
  const TieredTables* tiers() const { return tiers_ ? &*tiers_ : nullptr; }
  /// Returns the transfers of rows to and from their GPU since construction.
  const SlotTransfers& transfers() const {
    return tiers_ ? tiers_->transfers() : mover_->transfers();
  }
  /// Ends the step. Evicts rows and candidates in each `evict_steps`th step.
  void end();

  /// Pools a batch into y like embedding::pool_into, for an evaluation between steps. The keys are
  /// on the CPU, y is in the rows' memory. Leaves no trace: admits and counts no key, and changes
  /// no tier. Throws UserError like check_jagged and, with tiers, like TieredTables::pool_into.
  void pool_into(const Jagged& keys, const at::Tensor& y) const;
  /// Starts to read the rows of a later step's keys from the slow tier, like
  /// TieredTables::prefetch. Does nothing without tiers.
  void prefetch(const Jagged& keys) const;

  /// Returns a copy of a table's contents without rows: `weight` and `state` are undefined. With
  /// RowSet::kChanged, it has the keys that occurred since the last forget_changes, and the evicted
  /// keys in `removed`. Call it between steps.
  KeyedRows keys(int64_t table, RowSet which = RowSet::kAll) const;
  /// Returns the stored rows of `keys`, (n) int64, and their state. All keys must have a row. Call
  /// it between steps.
  std::pair<at::Tensor, at::Tensor> rows(int64_t table, const at::Tensor& keys) const;
  /// Returns rows of a table by their keys (n) int64, as float32 (n, dim). Keys without a row have
  /// zeros. Leaves no trace.
  at::Tensor look_up(int64_t table, const at::Tensor& keys) const;
  /// Returns a copy of a table's contents, with rows. Call it between steps.
  KeyedRows contents(int64_t table, RowSet which = RowSet::kAll) const;
  /// Adds keys with their rows, and candidates. Keys and candidates that are present are replaced.
  /// Call it between steps. Throws UserError for wrong shapes, duplicate keys and too many keys for
  /// the table.
  void add(int64_t table, const KeyedRows& contents);
  /// Removes the keys in `known.removed` and the candidates in `candidates.removed` that are
  /// present. Call it between steps.
  void remove(int64_t table, const KeyedRows& removed);
  /// Removes all keys and candidates. Call it between steps.
  void clear(int64_t table);
  /// Starts to track changes anew: no key counts as changed or removed after the call. Call it
  /// after a checkpoint has saved the changes. Does nothing if changes are not tracked.
  void forget_changes();

  /// Returns the number of ended steps. Steps count from 1: a key that occurs in the first step has
  /// last_step 1.
  int64_t steps() const { return step_; }
  void set_steps(int64_t steps) { step_ = steps; }

  HashedCounters counters() const;
  /// Returns the bytes of memory in use: rows and state of present keys, maps, candidates. With
  /// tiers, the rows count as TieredTables::memory_bytes. The temporary memory in which a step
  /// lists its new keys is not included.
  int64_t memory_bytes() const;
  /// Returns the maximum number of rows of a table: its configured `rows`, or fewer if max_bytes
  /// holds fewer.
  int64_t maximum_rows(int64_t table) const { return tables_.at(static_cast<size_t>(table))->rows; }

 private:
  static constexpr uint32_t kNone = SlotMap<uint64_t>::kNone;

  /// Set of keys. Each present key has an entry in an array. The entry's number (index) does not
  /// change while the key is present.
  class Keys {
   public:
    struct Entry {
      uint64_t key = 0;
      int64_t occurrences = 0, last_step = 0;  // as in KeyCounts
      bool taken = false;                      // false: the entry is free and has no key
      // changed: the entry changed since the last forget_changes. saved: it was present at that
      // time.
      bool changed = false, saved = false;
    };

    Keys() : map_(kFewKeys) {}
    /// Reserves room for `most` keys, so that later inserts allocate nothing.
    Keys(int64_t most, Changes changes);
    /// Returns the bytes that Keys(most, changes) takes when it is full.
    static int64_t bytes_for(int64_t most, Changes changes);
    /// Returns the number of the key's entry, or kNone if the key is not present.
    uint32_t find(uint64_t key) const { return map_.find(key); }
    void prefetch(uint64_t key) const { map_.prefetch(key); }
    /// Inserts a key that is not present. Returns the number of its entry.
    uint32_t insert(uint64_t key);
    /// Removes the key with this entry number.
    void erase(uint32_t number);
    /// Returns the number of present keys.
    int64_t size() const { return map_.size(); }
    /// Entries by number, including free ones.
    std::vector<Entry>& entries() { return entries_; }
    const std::vector<Entry>& entries() const { return entries_; }
    int64_t bytes() const;
    void clear();
    /// Returns the entry numbers of the present keys in `which`, in ascending order of the keys.
    std::vector<int64_t> ascending(RowSet which) const;
    /// Returns the keys with these entry numbers, and all removed keys.
    KeyCounts counts(const std::vector<int64_t>& numbers) const;
    /// Adds keys, or replaces the counts of those that are present. Returns the numbers of their
    /// entries.
    at::Tensor put(const KeyCounts& counts);
    void forget_changes();

   private:
    static constexpr int64_t kFewKeys = 16;

    int64_t most_ = 0;  // number of keys for which room is reserved; 0: grows on demand
    Changes changes_ = Changes::kUntracked;
    SlotMap<uint64_t> map_;
    std::vector<Entry> entries_;
    std::vector<uint32_t> free_;  // numbers of free entries; the last one is reused first
    // removed_: keys erased since the last forget_changes, if they were present at that time. Some
    // may be present again.
    std::vector<uint64_t> removed_;
  };

  struct Table {
    Table(const InitialRows& initial, uint64_t seed) : initial(initial), admission_seed(seed) {}

    InitialRows initial;
    uint64_t admission_seed;
    // rows: maximum number of keys with a row. state_width: floats of state for each row.
    int64_t rows = 0, row_bytes = 0, state_width = 0;
    bool capped = false;  // true: max_bytes allows fewer rows than TableSpec::rows
    // The key in entry i of `keys` has row i + 1 of packed_, or row i of tiers_.
    Keys keys, candidates;
    std::vector<RowMove> moves;  // without tiers: rows that the step has added
    HashedCounters counters;
  };
  /// Key that has no row when the step begins, and the number of its occurrences in the step.
  struct NewKey {
    uint64_t key;
    int64_t count;
  };

  /// Returns the bytes of a table that has `rows` rows, as max_bytes counts them.
  static int64_t bytes_for(const PackSpec& spec, const TableSpec& table,
                           const HashedOptions& options, Changes changes, int64_t rows);
  static int64_t bytes_of_keys(const HashedOptions& options, Changes changes, int64_t rows);
  /// Returns the number of rows that fit into the table's max_bytes, at most table.rows.
  static int64_t rows_within(const PackSpec& spec, const TableSpec& table,
                             const HashedOptions& options, Changes changes);
  /// Returns the spec with the maximum number of rows of each table, plus `more_rows`.
  static PackSpec limited(PackSpec spec, const HashedOptions& options, Changes changes,
                          int64_t more_rows);
  void make_packed(const PackSpec& spec, SlotMemory memory);
  void make_tiers(const PackSpec& spec, const TierOptions& tiers, SlotMemory memory);
  /// Returns the key of entry `number`.
  uint64_t key_of(int64_t t, int64_t number) const {
    return tables_[static_cast<size_t>(t)]->keys.entries()[static_cast<size_t>(number)].key;
  }
  /// Writes the initial values of the rows that the step has added.
  void initialize_rows();
  void begin_table(int64_t t, const Jagged& keys, int64_t* slots);
  uint32_t admit(Table& table, const NewKey& key);
  bool is_admitted(Table& table, const NewKey& key) const;
  void evict(int64_t t);
  /// Returns the occurrence count of an entry of `keys` after `steps` ended steps. It applies the
  /// halvings of Eviction::kFrequency since the entry's last step.
  int64_t occurrences_after(const Keys::Entry& entry, int64_t steps) const;
  void evict_candidates(Table& table) const;
  /// Returns the batch with row numbers of packed_ instead of keys. With tiers, these are row
  /// numbers of tiers_, and RowCache::kNoId for keys without a row.
  Jagged find(const Jagged& keys) const;
  void erase(int64_t t, uint32_t number);
  Table& between_steps(int64_t t) const;
  void check_shapes(int64_t t, const KeyedRows& contents) const;
  void set_rows(int64_t t, const at::Tensor& numbers, const KeyedRows& contents);

  PackSpec spec_;
  HashedOptions options_;
  Changes changes_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::optional<PackedTables> packed_;  // exactly one of packed_ and tiers_ is set
  std::optional<SlotMover> mover_;      // set with packed_
  std::optional<TieredTables> tiers_;
  std::vector<int64_t> feature_rows_;
  bool in_step_ = false;
  int64_t step_ = 0;
};

}  // namespace dovetail::embedding
