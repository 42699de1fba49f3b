#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_batch.h"
#include "dovetail/data/rows/row_config.h"
#include "dovetail/data/rows/row_days.h"
#include "dovetail/data/rows/row_statistics.h"

namespace dovetail::data {

struct RowLoaderOptions {
  uint64_t seed = 0;  ///< seed of the shuffle
  int64_t batch = 1;  ///< rows of a step, summed over all ranks
  /// Index of this rank, and number of ranks. Rank r gets these rows of a step:
  /// [r * batch / world, (r + 1) * batch / world).
  int rank = 0, world = 1;
  /// Scales of the dense columns, in their order. A checkpoint has them. Scales that are nullopt
  /// are measured on the training rows. Empty: all are measured.
  std::vector<std::optional<DenseScale>> scales = {};
};

/// Order of the training rows in an epoch. Each row comes once. Windows of `window` consecutive
/// rows follow each other in the order of the files. The rows of a window are shuffled among
/// themselves. The order depends only on the constructor's arguments and the epoch.
class RowOrder {
 public:
  /// `window` = 0: all rows are one window.
  RowOrder(uint64_t seed, int64_t num_rows, int64_t window);
  /// Returns the number of rows in a window; the last window may have fewer.
  int64_t window() const { return window_; }
  int64_t num_windows() const { return (num_rows_ + window_ - 1) / window_; }
  /// Returns the row that comes at `position` (from 0) of `epoch`, as an index in file order.
  int64_t row(int64_t epoch, int64_t position) const;

 private:
  uint64_t seed_;
  int64_t num_rows_, window_;
};

/// Loads the batches of a training run, and its validation rows. Rows that are bad or have no label
/// are left out. All rows and indices below count only the remaining rows.
///
/// Row i of step s is at position s * batch + i of RowOrder; positions continue from epoch to
/// epoch. The row at a position depends on (seed, epoch, position) alone. A run therefore resumes
/// exactly at any step and with another world size, without saved state. If config.day is set, the
/// steps go through DayOrder once instead. One thread prefetches the next steps; `config.threads`
/// other threads decode blocks.
///
/// Memory: four batches, and all decoded rows if they fit `config.cache_bytes`. If they do not fit,
/// memory holds only some blocks of rows (see RowReader). These are the blocks with the windows
/// from which a step draws, the blocks of the next window, and `config.threads` more.
class RowLoader {
 public:
  /// Reads all rows once to compute statistics (scan_rows). Throws as scan_rows does.
  RowLoader(const RowsConfig& config, const RowLoaderOptions& options);
  ~RowLoader();

  /// Returns this rank's rows of `step`. Fast if steps are requested in order.
  RowBatch step(int64_t step);

  /// Sets the part of each step that later calls of `step` return: rows [begin, end). In a step
  /// with fewer than `end` rows, the part ends with the step. Discards prefetched steps and
  /// prefetches them again.
  void set_part(int64_t begin, int64_t end);

  /// Returns rows [begin, end) of the validation rows, in file order. Fast if successive calls go
  /// forward.
  RowBatch validation(int64_t begin, int64_t end);

  /// Returns the order of rows and steps in a run with config.day. Without config.day, the result
  /// has no days.
  const DayOrder& days() const;
  /// Returns rows [begin, end) of a day, in file order. `day` is an index in `days().days()`. Fast
  /// if successive calls go forward.
  RowBatch day(int64_t day, int64_t begin, int64_t end);

  /// Returns the mean and deviation by which the dense columns of batches are computed.
  const std::vector<DenseScale>& scales() const;
  int64_t num_train_rows() const { return statistics().train_rows; }
  int64_t num_validation_rows() const { return statistics().validation_rows; }
  const RowStatistics& statistics() const;
  /// Returns a line for the log: number of rows, number of rows left out, and whether decoded rows
  /// stay in memory.
  std::string summary() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::data
