#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_batch.h"
#include "dovetail/data/rows/row_config.h"
#include "dovetail/data/rows/row_days.h"
#include "dovetail/data/rows/row_statistics.h"

namespace dovetail {

struct RowLoaderOptions {
  uint64_t seed = 0;
  int64_t batch = 1;  ///< rows of a step over all ranks
  int rank = 0,
      world = 1;  ///< rank r gets rows [r * batch / world, (r + 1) * batch / world) of a step
  std::vector<DenseScale> scales =
      {};  ///< of the run's checkpoint; empty: those of the training rows
};

/// Where the training rows come in an epoch: each once, shuffled among the `window` that follow one
/// another in the files. A function of its arguments alone.
class RowOrder {
 public:
  /// window 0: all rows are one window.
  RowOrder(uint64_t seed, int64_t num_rows, int64_t window);
  int64_t window() const { return window_; }
  int64_t num_windows() const { return (num_rows_ + window_ - 1) / window_; }
  /// The row, in file order, that is at `position` of `epoch`.
  int64_t row(int64_t epoch, int64_t position) const;

 private:
  uint64_t seed_;
  int64_t num_rows_, window_;
};

/// Batches of rows. Row i of step s is the one that RowOrder has at position s * batch + i, counted
/// on through the epochs: a function of (seed, epoch, position) alone, so that it resumes exactly
/// at any step and at another world size, with no state to save. With config.day steps are those of
/// DayOrder, once. Prefetches the next steps on a thread of its own and decodes on `config.threads`
/// others.
///
/// Memory: all decoded rows if they fit `config.cache_bytes`, else those of the windows that a step
/// touches and of one ahead (rounded up to blocks) and of `threads` blocks more; four batches.
class RowLoader {
 public:
  /// Reads all rows once: scan_rows tells what it throws.
  RowLoader(const RowsConfig& config, const RowLoaderOptions& options);
  ~RowLoader();

  /// This rank's rows of `step`. Fast when steps come in order.
  RowBatch step(int64_t step);

  /// From the next `step` on this rank gets rows [begin, end) of a step, as far as it has so many.
  /// What was prefetched is made again.
  void set_part(int64_t begin, int64_t end);

  /// Rows [begin, end) of validation, in the order of the files. Fast when calls go forward.
  RowBatch validation(int64_t begin, int64_t end);

  /// With config.day.
  const DayOrder& days() const;
  /// Rows [begin, end) of a day, in the order of the files. Fast when calls go forward.
  RowBatch day(int64_t day, int64_t begin, int64_t end);

  /// What the batches' dense columns were scaled by.
  const std::vector<DenseScale>& scales() const;
  int64_t num_train_rows() const { return statistics().train_rows; }
  int64_t num_validation_rows() const { return statistics().validation_rows; }
  const RowStatistics& statistics() const;
  /// A line for the log: rows, what was left out, whether decoded rows are kept.
  std::string summary() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail
