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

/// Statistics of a dense column over the training rows, after log1p if the column has that
/// transform.
struct DenseStatistics {
  std::string column;
  int64_t count = 0, missing = 0;  ///< rows with a number, and rows without one
  double mean = 0, deviation = 0;  ///< population values: sums are divided by `count`
  double lowest = 0, highest = 0;  ///< minimum and maximum
  /// True if transform = "standard": the mean is subtracted in float64, before rounding to float32.
  bool standard = false;
};

/// Statistics of a feature and its ids. Two ids count as the same if they are equal mod 2^24. In
/// tables with more rows, `distinct` and `unseen` are therefore lower bounds.
struct SparseStatistics {
  std::string feature;
  /// Number of ids in all training rows, and number of different ids among them.
  int64_t ids = 0, distinct = 0;
  /// Number of ids in all validation rows, and number of those ids that are in no training row.
  int64_t validation_ids = 0, unseen = 0;
  /// Minimum and maximum number of ids in a training row, and number of training rows without ids.
  int64_t shortest = 0, longest = 0, empty = 0;
};

/// Statistics of all rows of the files, from one pass over them. A row that is bad or has no label
/// (see RowsConfig) is left out of all but the counts `bad` and `unlabelled`.
struct RowStatistics {
  int64_t train_rows = 0, validation_rows = 0;  ///< numbers of rows that are not left out
  int64_t bad = 0, unlabelled = 0;              ///< numbers of rows that are left out
  /// Messages about the first bad rows. Each has the form "file: row 7, column `x`: reason".
  std::vector<std::string> bad_rows;
  std::vector<std::string> labels;       ///< RowsConfig::label
  std::vector<std::string> seen_labels;  ///< columns of labels that are also inputs of the model
  std::vector<double> label_mean;        ///< mean of each label over the training rows that have it
  std::vector<DenseStatistics> dense;    ///< for each dense column, in the order of the config
  std::vector<SparseStatistics> sparse;  ///< for each feature, in the order of the config
  /// Hashed columns in which all ids of some file read like "7.0". Maps the name of each column to
  /// the first such file. Result of FloatIds::found.
  std::map<std::string, std::string> float_ids;
  /// Means and deviations of the dense columns over the training rows. With rows.day, over the rows
  /// of the first day only.
  std::vector<DenseScale> scales;
  std::vector<RowDay> days;  ///< days of a run with rows.day; all its rows are training rows
};

/// Block that scan_rows has read.
struct ScannedBlock {
  int64_t num_rows = 0;                  ///< rows of the block that are not left out
  std::shared_ptr<const RowBlock> rows;  ///< decoded rows; null if they do not stay in memory
};

/// Finds hashed columns whose ids are integers that were written as floats. All their ids in a text
/// file then read like "7.0". Cause: pandas writes integers in this form if their column has
/// missing values. Such an id gets another hash than the id "7" of another file.
class FloatIds {
 public:
  /// Adds RowBlock::id_forms of a block of `file`. Blocks of one file must be added one after the
  /// other.
  void add(const std::filesystem::path& file, const std::vector<uint8_t>& id_forms);
  /// Returns the columns that were found. Maps the name of each to the first file in which all its
  /// ids read like "7.0". `columns` is RowDecoder::columns.
  std::map<std::string, std::string> found(const std::vector<std::string>& columns) const;

 private:
  /// Name of each file, and for each column the IdForm bits that occurred in the file's blocks.
  std::vector<std::pair<std::string, std::vector<uint8_t>>> files_;
};

/// Returns a warning for each entry of `float_ids`, the result of `FloatIds::found`.
std::vector<std::string> float_id_warnings(const std::map<std::string, std::string>& float_ids);

/// Result of scan_rows.
struct RowScan {
  RowStatistics statistics;
  std::vector<ScannedBlock> blocks;  ///< all blocks of the RowReader, in order
};

/// Reads every row once, on `config.threads` threads, to compute statistics. The result also holds
/// the decoded rows if all of them together fit `config.cache_bytes`. Otherwise, ScannedBlock::rows
/// is null for every block. The result does not depend on the number of threads. Throws UserError
/// for
///
/// - the first bad row in file order, if bad_row = "error"
/// - more than `max_bad_rows` bad rows, if bad_row = "skip"
/// - files in which no training row is left
/// - a row whose day is before the day of an earlier row (comes_before)
RowScan scan_rows(const RowsConfig& config, const RowReader& reader);

/// Returns warnings about data that makes training pointless or worse. There is a warning for
///
/// - a label that is 0 or 1 in all training rows, or whose column is also an input of the model
/// - a dense column that is constant or missing in all training rows
/// - a dense column that float32 rounds by more than 1/1000 of its deviation
/// - a feature that is the same in all training rows
/// - a feature with more than a tenth of its validation ids in no training row
/// - a column with a file in which all its hashed ids read like "7.0" (FloatIds)
/// - files with more than a tenth of the rows left out as bad
std::vector<std::string> row_warnings(const RowStatistics& statistics);

}  // namespace dovetail::data
