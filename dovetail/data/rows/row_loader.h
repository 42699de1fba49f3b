#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_batch.h"
#include "dovetail/data/rows/row_config.h"
#include "dovetail/data/rows/row_days.h"
#include "dovetail/data/rows/row_statistics.h"

namespace dovetail::data {

struct RowLoaderOptions {
  uint64_t seed = 0;
  int64_t batch = 1;  ///< rows of a step, summed over all ranks
  /// Rank r gets rows [r * batch / world, (r + 1) * batch / world) of a step.
  int rank = 0, world = 1;
  /// Scales from the run's checkpoint. Empty: measure them on the training rows.
  std::vector<DenseScale> scales = {};
};

/// Order of the training rows in an epoch. Each row comes once, shuffled within windows of `window`
/// consecutive rows of the files. The order depends on the arguments alone.
class RowOrder {
 public:
  /// `window` 0: all rows are one window.
  RowOrder(uint64_t seed, int64_t num_rows, int64_t window);
  int64_t window() const { return window_; }
  int64_t num_windows() const { return (num_rows_ + window_ - 1) / window_; }
  /// Returns the row, in file order, at `position` of `epoch`.
  int64_t row(int64_t epoch, int64_t position) const;

 private:
  uint64_t seed_;
  int64_t num_rows_, window_;
};

/// Loads batches of rows. Row i of step s is at position s * batch + i of RowOrder, counted on
/// through the epochs. It depends on (seed, epoch, position) alone. A run therefore resumes exactly
/// at any step and with another world size, without saved state. With config.day, steps follow
/// DayOrder, once. One thread prefetches the next steps; `config.threads` other threads decode.
///
/// Memory: four batches, and all decoded rows if they fit `config.cache_bytes`. Otherwise the
/// loader holds the blocks of a step's windows, of one window ahead, and `threads` more blocks.
class RowLoader {
 public:
  /// Reads all rows once. Throws as scan_rows does.
  RowLoader(const RowsConfig& config, const RowLoaderOptions& options);
  ~RowLoader();

  /// Returns this rank's rows of `step`. Fast if steps are requested in order.
  RowBatch step(int64_t step);

  /// Gives this rank rows [begin, end) of each step, from the next call of `step` on. A step with
  /// fewer rows gives as many as it has. Discards prefetched steps and prefetches them again.
  void set_part(int64_t begin, int64_t end);

  /// Returns rows [begin, end) of validation, in file order. Fast if calls go forward.
  RowBatch validation(int64_t begin, int64_t end);

  /// Returns the order of rows and steps. Only with config.day.
  const DayOrder& days() const;
  /// Returns rows [begin, end) of a day, in file order. Fast if calls go forward.
  RowBatch day(int64_t day, int64_t begin, int64_t end);

  /// Returns the scales that were applied to the batches' dense columns.
  const std::vector<DenseScale>& scales() const;
  int64_t num_train_rows() const { return statistics().train_rows; }
  int64_t num_validation_rows() const { return statistics().validation_rows; }
  const RowStatistics& statistics() const;
  /// Returns a line for the log: rows, rows left out, and whether decoded rows are kept in memory.
  std::string summary() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::data
