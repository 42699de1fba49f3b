#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_batch.h"
#include "dovetail/data/rows/row_days.h"
#include "dovetail/data/rows/row_reader.h"

namespace dovetail::data {

/// Statistics of a dense column over the training rows, after log1p.
struct DenseStatistics {
  std::string column;
  int64_t count = 0, missing = 0;
  double mean = 0, deviation = 0;  ///< population values: divided by count
  double lowest = 0, highest = 0;
  /// True if transform = "standard": the mean is subtracted in float64, before rounding to float32.
  bool standard = false;
};

/// Statistics of a feature. Two ids count as the same if they are equal mod 2^24. In larger tables,
/// `distinct` and `unseen` are therefore lower bounds.
struct SparseStatistics {
  std::string feature;
  int64_t ids = 0, distinct = 0;  ///< all ids of the training rows, and the different ones
  /// `unseen`: ids of validation rows that no training row has.
  int64_t validation_ids = 0, unseen = 0;
  /// Minimum and maximum number of ids in a training row; number of training rows without ids.
  int64_t shortest = 0, longest = 0, empty = 0;
};

/// Result of one pass over all rows.
struct RowStatistics {
  int64_t train_rows = 0, validation_rows = 0;  ///< kept rows
  int64_t bad = 0, unlabelled = 0;
  /// The first bad rows, each as "file: row 7, column `x`: reason".
  std::vector<std::string> bad_rows;
  std::vector<std::string> labels;
  std::vector<std::string> seen_labels;  ///< columns of labels that are also inputs of the model
  std::vector<double> label_mean;        ///< mean of each label over the training rows that have it
  std::vector<DenseStatistics> dense;
  std::vector<SparseStatistics> sparse;
  /// Maps a column to the first file in which all its hashed ids read like 7.0.
  std::map<std::string, std::string> float_ids;
  /// Means and deviations over the training rows. With rows.day, over the first day only.
  std::vector<DenseScale> scales;
  std::vector<RowDay> days;  ///< days of a run with rows.day; all its rows are training rows
};

/// Block that the scan has read.
struct ScannedBlock {
  int64_t num_rows = 0;
  std::shared_ptr<const RowBlock> rows;  ///< null if decoded rows are not kept in memory
};

/// Finds columns of a file whose hashed ids all read like "7.0". Integers have this form if pandas
/// wrote a column that has missing values.
class FloatIds {
 public:
  /// Adds a block of `file`. Blocks of one file must be added one after the other.
  void add(const std::filesystem::path& file, const std::vector<uint8_t>& id_forms);
  /// Maps each column that has such a file to the first of these files.
  std::map<std::string, std::string> found(const std::vector<std::string>& columns) const;

 private:
  std::vector<std::pair<std::string, std::vector<uint8_t>>> files_;
};

/// Returns a warning for each entry of `FloatIds::found`.
std::vector<std::string> float_id_warnings(const std::map<std::string, std::string>& float_ids);

struct RowScan {
  RowStatistics statistics;
  std::vector<ScannedBlock> blocks;
};

/// Reads every row once on `config.threads` threads. Keeps all decoded blocks if they fit
/// `config.cache_bytes`, else none. The result does not depend on the number of threads. Throws
/// UserError for
///
/// - the first bad row in file order, if bad_row = "error"
/// - more than `max_bad_rows` bad rows, if bad_row = "skip"
/// - no training row left
/// - days that do not rise (comes_before)
RowScan scan_rows(const RowsConfig& config, const RowReader& reader);

/// Returns warnings about findings that make training pointless or worse:
///
/// - label: one class only, or its column is also an input of the model
/// - dense column: constant, or rounded by float32 by more than 1/1000 of its deviation
/// - feature: more than a tenth of the validation ids are in no training row
/// - hashed column of text: all ids of a file read like 7.0
/// - rows: more than a tenth left out as bad
std::vector<std::string> row_warnings(const RowStatistics& statistics);

}  // namespace dovetail::data
