#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/embedding/pack/jagged.h"
#include "dovetail/embedding/pack/table.h"
#include "dovetail/embedding/tiers/row_cache.h"
#include "dovetail/embedding/tiers/slot_mover.h"
#include "dovetail/embedding/tiers/slow_rows.h"

namespace dovetail::embedding {

/// Limits and policy of TieredTables. The class explains the tiers and the staging area.
struct TierOptions {
  TierPolicy policy = TierPolicy::kHot;
  /// Maximum bytes of memory for all tables. It covers the rows and state in the fast tier and in
  /// the staging area. In RAM it also covers the map from rows to slots, access counts and bitmaps.
  /// For a fast tier on a GPU these are in RAM, and memory_bytes is memory of the GPU alone. A slow
  /// tier in RAM is not included. The system's cache of the slow tier's files is not included
  /// either.
  int64_t memory_bytes = 0;
  /// Slots of the staging area of a table: distinct rows that a step reads outside the fast tier.
  /// Rows beyond this number take slots of the fast tier.
  int64_t step_rows = 0;
  /// For TierPolicy::kHot: steps before the first choice of rows, and steps between later choices.
  /// If refresh_steps is 0, rows are chosen only once.
  int64_t warmup_steps = 100, refresh_steps = 1000;
  /// Folder of the slow tier's files; empty: the slow tier is in RAM.
  std::filesystem::path folder;
};

/// Returns the key of a row of a hashed table (hashed.h). `table` is the table's number.
using KeyOfRow = std::function<uint64_t(int64_t table, int64_t row)>;

/// Bytes of memory that a table needs at least: for its keys, if it is a hashed table, and for
/// rows.
struct TableMemory {
  std::string table;
  int64_t keys = 0, rows = 0;
};

/// Returns the bytes of TierOptions::memory_bytes that remain beside what the tables need at least.
/// Throws UserError, naming the tables, if they need more than memory_bytes.
int64_t memory_left(int64_t memory_bytes, std::vector<TableMemory> least);

/// Counters since construction, summed over the tables.
struct TierCounters {
  /// Hits: accesses (ids of steps) of rows that were in the fast tier when their step began.
  /// Misses: all other accesses.
  int64_t hits = 0, misses = 0;
  /// Records read from and written to the slow tier, and their bytes. A record is a row with its
  /// state.
  int64_t rows_read = 0, rows_written = 0, bytes_read = 0, bytes_written = 0;
  /// Rows that were brought in without a record, since they were never written to the slow tier.
  /// Their initial values were computed.
  int64_t rows_initialized = 0;
  /// Access counts when TierPolicy::kHot last chose rows. `counted` counts all accesses,
  /// `counted_hot` only accesses of the most frequent rows that fill the fast tier. Their ratio is
  /// the ideal hit rate for the measured frequencies of rows. Both are 0 before the first choice
  /// and for other policies.
  int64_t counted = 0, counted_hot = 0;

  TierCounters& operator+=(const TierCounters& other);
  double hit_rate() const {
    return hits + misses == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(hits + misses);
  }
  double ideal_hit_rate() const {
    return counted == 0 ? 0 : static_cast<double>(counted_hot) / static_cast<double>(counted);
  }
};

/// Tables that keep only some of their rows in memory: the fast tier, for the rows used most. Rows
/// that only one step needs are in a staging area in memory during that step. All other rows and
/// their optimizer state are in a slow tier, in files or in other RAM. The files are sparse and
/// have no names. Every process creates new files. The fast tier and the staging area of a table
/// consist of slots, which hold one row each. Usage:
///
/// ```
/// const Jagged slots = tiers.begin(ids);  // brings the step's rows into slots
/// pool(tiers.fast(), slots);
/// update(tiers.fast(), {{slots, gradient}});  // or micro-batches samples_of(slots, ...)
/// tiers.end();  // writes the rows of the staging area back
/// ```
///
/// Moving a row between tiers never changes it. Results equal those for PackedTables with the same
/// spec, bit for bit, for all options and any number of threads. A row that was never updated is
/// stored nowhere: its initial value is recomputed.
///
/// All tables get the same number of fast rows, the maximum that the memory allows. A table with no
/// more rows than this number is in the fast tier as a whole. After a disk error, only the
/// destructor may be called.
///
/// The slots may be on a GPU. Then maps, counts and the slow tier are in RAM or in files, as
/// without a GPU. Ids and slots in a Jagged are on the CPU, too. Each of `begin` and `end` is one
/// call of SlotMover::move. Rows that leave are written to the slow tier during the next call.
///
/// The rows of hashed tables (TableSpec::hashed) belong to keys, and may be released. A row's
/// initial value and rounding depend on its key instead of its number. Each table has one more
/// slot, after the staging area. It is all zeros and stands for ids without a row
/// (RowCache::kNoId). Gradients of such ids are discarded.
class TieredTables {
 public:
  /// Throws UserError like PackedTables, and like memory_left for least_memory. The tables must all
  /// be hashed, with a `key_of`, or none without.
  TieredTables(const PackSpec& spec, const TierOptions& options, KeyOfRow key_of = {},
               SlotMemory memory = {});
  TieredTables(const TieredTables&) = delete;  // mover_ refers to fast_
  TieredTables& operator=(const TieredTables&) = delete;

  /// Returns what each table needs at least: a few rows in the fast tier, and the staging area.
  /// `apart` is as in SlotMemory.
  static std::vector<TableMemory> least_memory(const PackSpec& spec, const TierOptions& options,
                                               bool apart = false);

  /// Returns the spec that the constructor got. In fast().spec(), `rows` is the number of slots.
  const PackSpec& spec() const { return spec_; }
  const TierOptions& options() const { return options_; }
  /// Returns the number of a table's slots in the fast tier, which keep their rows between steps.
  int64_t fast_rows(int64_t table) const {
    return tables_.at(static_cast<size_t>(table))->cache_options.fast_rows;
  }
  /// Returns the bytes of memory that these tables take, as TierOptions::memory_bytes counts them.
  int64_t memory_bytes() const { return memory_bytes_; }

  /// Begins a step: brings all rows of `ids` into slots. Returns the batch with slots, which are
  /// rows of fast(), instead of ids. Both are on the CPU. Steps must not overlap. Throws UserError
  /// like check_jagged, and for more distinct rows than a table has slots.
  Jagged begin(const Jagged& ids);
  /// Starts to read the rows of a later step from the disk, without waiting. Call it within the
  /// previous step. Results do not depend on it.
  void prefetch(const Jagged& ids) const;
  /// Pools a batch into y like embedding::pool_into, for an evaluation between steps. The ids are
  /// on the CPU, y is in the slots' memory. Leaves no trace: counts no access and changes no row of
  /// the fast tier. Requires tables with pooling (not Pooling::kNone). Throws UserError like
  /// check_jagged. The rows that are not in the fast tier need empty slots. Throws UserError if one
  /// sample has more such rows than there are empty slots.
  void pool_into(const Jagged& ids, const at::Tensor& y) const;
  /// Returns the slots as tables: the rows of the fast tier, then the staging area.
  PackedTables& fast() { return fast_; }
  const PackedTables& fast() const { return fast_; }
  /// Ends the step. The step's rows count as changed if fast().steps() has changed since `begin`.
  /// Then the rows of the staging area are written to the slow tier.
  void end();
  /// Writes rows to the slow tier that are on their way there from a GPU.
  void settle() const { mover_->settle(); }

  /// Reads rows [begin, begin + count) of a table and their state, from either tier. Returns
  /// (count, stored_width) of stored_type and (count, state_per_row) float32. Call it between
  /// steps.
  std::pair<at::Tensor, at::Tensor> rows(int64_t table, int64_t begin, int64_t count) const;
  /// Reads the rows with the numbers `rows`, (count) int64 ascending, and their state. The result
  /// has the same form as above.
  std::pair<at::Tensor, at::Tensor> rows(int64_t table, const at::Tensor& rows) const;
  /// Returns rows of a table by their distinct numbers (n) int64, as float32 (n, dim). Leaves no
  /// trace.
  at::Tensor look_up(int64_t table, const at::Tensor& rows) const;
  /// Returns the number of the table's row in a slot of fast(). In a step, this includes slots of
  /// the staging area.
  int64_t row_in(int64_t table, int64_t slot) const {
    return tables_[static_cast<size_t>(table)]->cache.rows_in()[slot];
  }
  /// Sets rows and state from row `begin` on, in the form that rows() returns. Call it between
  /// steps.
  void set_rows(int64_t table, int64_t begin, const at::Tensor& stored, const at::Tensor& state);
  /// Releases a row: discards its values and state. At its next use, it starts from the initial
  /// value of its key at that time. Requires a KeyOfRow. Call it between steps, after `settle`.
  /// Different threads may release rows of different tables at the same time.
  void release(int64_t table, int64_t row);

  TierCounters counters() const;
  /// Returns the transfers of the slots' GPU since construction.
  const SlotTransfers& transfers() const { return mover_->transfers(); }

 private:
  struct Table {
    Table(const RowCacheOptions& cache, const SlowRows::Options& slow_options,
          const InitialRows& initial)
        : cache_options(cache), cache(cache), slow(slow_options, initial) {}

    RowCacheOptions cache_options;
    RowCache cache;
    SlowRows slow;
    int64_t row_bytes = 0, state_width = 0;
    std::vector<RowMove> moves;  ///< moves of the current stage of a step
  };

  TieredTables(const PackSpec& spec, const TierOptions& options, KeyOfRow key_of, SlotMemory memory,
               int64_t fast_rows);
  /// Moves of all tables in the current stage of a step.
  SlotMover::Moves moves() const;
  /// Asks the system to load the records of the moves, all before the first is awaited.
  void advise_moves() const;
  /// Carries out the moves. Rows come from the slow tier and leave to it.
  void move_rows() const;
  /// Reads the rows in slots of a table. `leaving[i].evicted` is the place of row i in `stored` and
  /// `state`.
  void read_slots(int64_t table, const std::vector<RowMove>& leaving, char* stored,
                  float* state) const;
  /// Calls body(table, parts) for all tables, on all threads. `parts` has one RowCache::Ids for
  /// each feature of the table: its ids in `ids`, and the place in `slots` for their slots.
  template <class Body>
  void each_table(const Jagged& ids, const at::Tensor& slots, const Body& body) const;
  Table& checked(int64_t table, int64_t begin, int64_t count) const;

  PackSpec spec_;
  TierOptions options_;
  KeyOfRow key_of_;
  int64_t memory_bytes_ = 0;
  PackedTables fast_;
  std::unique_ptr<SlotMover> mover_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<int64_t> feature_rows_;  // rows of each feature's table in spec_
  bool in_step_ = false;
  int64_t steps_at_begin_ = 0;
};

}  // namespace dovetail::embedding
