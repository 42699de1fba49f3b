#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_config.h"
#include "dovetail/data/rows/row_decoder.h"

namespace dovetail::data {

/// Reads the rows of the files that a config names. In file order, the last rows are the validation
/// rows (num_validation_rows). All rows before them are the training rows.
///
/// Rows are read in blocks. A block is a range of adjacent rows of one file: a row group of
/// Parquet, or about 2 MiB of text. A range with training rows and validation rows is split into
/// two blocks, one for each kind. Blocks are numbered from 0 in file order and can be read in any
/// order.
///
/// The constructor finds where blocks begin, without decoding them. It reads all bytes of a text
/// file once, but only the footer of a Parquet file.
class RowReader {
 public:
  /// Throws UserError for an invalid config, for files that cannot be read and for missing columns.
  explicit RowReader(const RowsConfig& config);
  ~RowReader();

  const RowDecoder& decoder() const;
  /// Returns the number of rows in all files, including bad rows and rows without a label.
  int64_t num_rows() const;
  /// Returns the number of validation rows, which are the last rows: floor(num_rows *
  /// validation_fraction). It is 0 if config.day is set.
  int64_t num_validation_rows() const;
  int64_t num_blocks() const;
  /// Returns the number of blocks of training rows. All later blocks hold validation rows.
  int64_t num_train_blocks() const;
  /// Returns the path of the file to which a block belongs.
  const std::filesystem::path& file_of(int64_t block) const;
  int64_t first_row(int64_t block) const;  ///< index of the block's first row in its file, from 0

  /// Reads and decodes a block. The result has the valid rows, and the numbers of bad rows and of
  /// rows without a label. Decodes only the columns that the config uses. In a Parquet file, reads
  /// only these columns. Thread-safe.
  RowBlock read(int64_t block) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the files that the file names and globs in `patterns` stand for, in their order. Files
/// of one glob are sorted by name. Throws UserError for a pattern that matches no file.
std::vector<std::filesystem::path> expand_files(const std::vector<std::string>& patterns);

}  // namespace dovetail::data
