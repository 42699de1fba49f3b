#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "dovetail/embedding/pack/jagged.h"
#include "dovetail/embedding/pack/table.h"
#include "dovetail/embedding/tiers/row_cache.h"
#include "dovetail/embedding/tiers/slow_rows.h"

namespace dovetail::embedding {

struct TierOptions {
  TierPolicy policy = TierPolicy::kHot;
  /// Bytes of everything that TieredTables hold in RAM: rows and state of the fast tier and of the
  /// staging area, the map of rows to slots, counts, bitmaps. Not in it: the slow tier where that
  /// is RAM, the system's cache of its files.
  int64_t memory_bytes = 0;
  /// Of a table, the most distinct rows of one step that are not in the fast tier.
  int64_t step_rows = 0;
  int64_t warmup_steps = 100,
          refresh_steps = 1000;  ///< of TierPolicy::kHot; refresh_steps = 0: chosen once
  std::filesystem::path folder;  ///< of the slow tier's files; empty: it is RAM
};

/// What the tiers did since they were made; sums over the tables.
struct TierCounters {
  int64_t hits = 0,
          misses = 0;  ///< accesses of rows in the fast tier when their step began, and all others
  int64_t rows_read = 0, rows_written = 0, bytes_read = 0,
          bytes_written = 0;     ///< records of the slow tier
  int64_t rows_initialized = 0;  ///< brought in for the first time, which reads nothing
  /// Of the counts at the last choice of TierPolicy::kHot: all accesses, and those of as many most
  /// frequent rows as the fast tier holds. Their ratio is the ideal hit rate of the measured
  /// distribution. 0 before, and of other policies.
  int64_t counted = 0, counted_hot = 0;

  TierCounters& operator+=(const TierCounters& other);
  double hit_rate() const {
    return hits + misses == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(hits + misses);
  }
  double ideal_hit_rate() const {
    return counted == 0 ? 0 : static_cast<double>(counted_hot) / static_cast<double>(counted);
  }
};

/// Tables of which only some rows are in memory, those that are used most; the others, with their
/// optimizer's state, are in files (sparse, without names, made anew by every process) or in other
/// RAM. Of a step,
///
///     const Jagged slots = tiers.begin(ids);     // rows of the step come in
///     pool(tiers.fast(), slots), update(tiers.fast(), {{slots, gradient}})  // or
///     samples_of(slots, ...) of them tiers.end();                               // what passed
///     through goes back
///
/// Rows are moved, never changed: the results are those of PackedTables of the same spec, bit for
/// bit, with any options and any number of threads. A row that was never updated is its initial
/// value, and lies nowhere.
///
/// Tables that fit into an equal share of the memory are in the fast tier as a whole; the others
/// get the same number of rows each. After an error of the disk, only the destructor may be called.
class TieredTables {
 public:
  /// Throws UserError as PackedTables, and for a memory_bytes that is too small, naming what is
  /// needed.
  TieredTables(const PackSpec& spec, const TierOptions& options);

  /// The spec as given; fast().spec() has the slots of the fast tier for rows.
  const PackSpec& spec() const { return spec_; }
  const TierOptions& options() const { return options_; }
  /// Slots of a table whose rows stay.
  int64_t fast_rows(int64_t table) const {
    return tables_.at(static_cast<size_t>(table))->cache_options.fast_rows;
  }
  int64_t memory_bytes() const {
    return memory_bytes_;
  }  ///< of TierOptions::memory_bytes, what is used

  /// The batch with slots of fast() instead of ids, once all its rows are in them. One step at a
  /// time. Throws UserError as check_jagged, and for more than step_rows rows.
  Jagged begin(const Jagged& ids);
  /// Begins to read the rows of a later step from the disk, without waiting for them: to be called
  /// within the step before. Changes no result.
  void prefetch(const Jagged& ids) const;
  /// Pools a batch into y as embedding::pool_into, for an evaluation between steps, and leaves no
  /// trace. No access is counted, and no row comes into the fast tier or leaves it. Pooled tables
  /// only. Throws UserError as check_jagged, and for one sample with more rows than the staging
  /// area has places.
  void pool_into(const Jagged& ids, const at::Tensor& y) const;
  PackedTables& fast() { return fast_; }
  const PackedTables& fast() const { return fast_; }
  /// Ends the step. Its rows have changed if fast().steps() has.
  void end();

  /// Rows [begin, begin + count) of a table as they are stored and their state, (count,
  /// stored_width) of stored_type and (count, state_per_row) float32, wherever they are. Between
  /// steps.
  std::pair<at::Tensor, at::Tensor> rows(int64_t table, int64_t begin, int64_t count) const;
  /// The same of `rows` (count) int64, ascending.
  std::pair<at::Tensor, at::Tensor> rows(int64_t table, const at::Tensor& rows) const;
  /// The row of a table in a slot of fast(), also where it passes through in a step.
  int64_t row_in(int64_t table, int64_t slot) const {
    return tables_[static_cast<size_t>(table)]->cache.rows_in()[slot];
  }
  /// Sets rows from `begin` on, as rows() gives them. Between steps.
  void set_rows(int64_t table, int64_t begin, const at::Tensor& stored, const at::Tensor& state);
  /// Writes all changed rows of the fast tier to the slow one, where they stay as well. Between
  /// steps.
  void flush();

  TierCounters counters() const;

 private:
  struct Table {
    Table(const RowCacheOptions& cache, const SlowRows::Options& slow_options,
          const InitialRows& initial)
        : cache_options(cache), cache(cache), slow(slow_options, initial) {}

    RowCacheOptions cache_options;
    RowCache cache;
    SlowRows slow;
    char* rows = nullptr;  // of fast_
    float* state = nullptr;
    int64_t row_bytes = 0, state_width = 0;
    std::vector<RowMove> moves;

    char* row_of(int64_t slot) const { return rows + slot * row_bytes; }
    float* state_of(int64_t slot) const { return state + slot * state_width; }
    void write(int64_t row, int64_t slot) { slow.write(row, row_of(slot), state_of(slot)); }
  };

  TieredTables(const PackSpec& spec, const TierOptions& options, int64_t fast_rows);
  template <class Body>
  void each_move(const Body& body) const;
  /// body(table, parts of `ids` with their places in `slots`) for all tables, on all threads.
  template <class Body>
  void each_table(const Jagged& ids, const at::Tensor& slots, const Body& body) const;
  Table& checked(int64_t table, int64_t begin, int64_t count) const;

  PackSpec spec_;
  TierOptions options_;
  int64_t memory_bytes_ = 0;
  PackedTables fast_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<int64_t> feature_rows_;  // of spec_
  bool in_step_ = false;
  int64_t steps_at_begin_ = 0;
};

}  // namespace dovetail::embedding
