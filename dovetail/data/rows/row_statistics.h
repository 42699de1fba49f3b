#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_batch.h"
#include "dovetail/data/rows/row_days.h"
#include "dovetail/data/rows/row_reader.h"

namespace dovetail {

/// A dense column over the training rows; numbers are those after log1p.
struct DenseStatistics {
  std::string column;
  int64_t count = 0, missing = 0;
  double mean = 0, deviation = 0;  ///< of the population: divided by count
  double lowest = 0, highest = 0;
  bool standard = false;  ///< the mean is subtracted in float64 before the numbers become float32
};

/// A feature. Ids are told apart by id mod 2^24, so that in larger tables `distinct` and `unseen`
/// are lower bounds.
struct SparseStatistics {
  std::string feature;
  int64_t ids = 0, distinct = 0;                 ///< of the training rows
  int64_t validation_ids = 0, unseen = 0;        ///< of them, those that no training row has
  int64_t shortest = 0, longest = 0, empty = 0;  ///< ids of a training row; rows without one
};

/// What one pass over all rows found.
struct RowStatistics {
  int64_t train_rows = 0, validation_rows = 0;  ///< that are kept
  int64_t bad = 0, unlabelled = 0;
  std::vector<std::string> bad_rows;  ///< the first of them, each "file: row 7, column `x`: reason"
  std::vector<std::string> labels;
  std::vector<std::string> seen_labels;  ///< columns of labels that are numbers or ids, too
  std::vector<double> label_mean;        ///< over the training rows that have it
  std::vector<DenseStatistics> dense;
  std::vector<SparseStatistics> sparse;
  std::map<std::string, std::string>
      float_ids;  ///< by column, the first file in which all hashed ids read like 7.0
  std::vector<DenseScale>
      scales;  ///< over the training rows; of a run that goes day by day, over the first day
  std::vector<RowDay> days;  ///< of such a run, whose rows are all training rows
};

/// A block that was read, which rows it gave.
struct ScannedBlock {
  int64_t num_rows = 0;
  std::shared_ptr<const RowBlock> rows;  ///< null where not kept
};

/// Finds columns of a file whose hashed ids all read like 7.0, as pandas writes integers beside
/// missing ones.
class FloatIds {
 public:
  /// Takes a block of a file. Blocks of one file follow one another.
  void add(const std::filesystem::path& file, const std::vector<uint8_t>& id_forms);
  /// The first such file of each of `columns` that has one.
  std::map<std::string, std::string> found(const std::vector<std::string>& columns) const;

 private:
  std::vector<std::pair<std::string, std::vector<uint8_t>>> files_;
};

/// Warnings for `FloatIds::found`.
std::vector<std::string> float_id_warnings(const std::map<std::string, std::string>& float_ids);

struct RowScan {
  RowStatistics statistics;
  std::vector<ScannedBlock> blocks;
};

/// Reads every row once on `config.threads` threads. All decoded blocks are kept if they fit
/// `config.cache_bytes`, else none. Throws UserError for the first bad row in the order of the
/// files, or for one more than `max_bad_rows`, as configured, if no training row is left, and if
/// the days do not rise (comes_before). The result does not depend on the threads.
RowScan scan_rows(const RowsConfig& config, const RowReader& reader);

/// Findings that make training pointless or worse. Labels: one class only, or also a dense column
/// or id. Dense columns: constant, or rounded by float32 by more than 1/1000 of their deviation.
/// Features: more than a tenth of the validation ids unseen in training. Hashed columns of text:
/// all ids of a file read like 7.0. Rows: more than a tenth left out as bad.
std::vector<std::string> row_warnings(const RowStatistics& statistics);

}  // namespace dovetail
