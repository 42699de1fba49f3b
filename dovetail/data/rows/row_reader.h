#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_config.h"
#include "dovetail/data/rows/row_decoder.h"

namespace dovetail::data {

/// Reads the rows of the files of a config, in blocks that can be read in any order. A block is a
/// row group of Parquet or about 2 MiB of text. The constructor finds where blocks begin, without
/// decoding them. It reads all bytes of a text file once, but only the footer of a Parquet file.
class RowReader {
 public:
  /// Throws UserError for an invalid config, for files that cannot be read and for missing columns.
  explicit RowReader(const RowsConfig& config);
  ~RowReader();

  const RowDecoder& decoder() const;
  int64_t num_rows() const;             ///< rows in the files, including bad rows
  int64_t num_validation_rows() const;  ///< the last rows: floor(num_rows * validation_fraction)
  int64_t num_blocks() const;
  /// Later blocks are validation; no block holds both kinds of rows.
  int64_t num_train_blocks() const;
  const std::filesystem::path& file_of(int64_t block) const;
  int64_t first_row(int64_t block) const;  ///< index of the block's first row in its file, from 0

  /// Returns the valid rows of a block and counts the others. Decodes only the columns of the
  /// config; reads only these columns of a Parquet file. Thread-safe.
  RowBlock read(int64_t block) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the files that names and globs stand for, in the given order. Files of one glob are
/// sorted by name. Throws UserError for a pattern that matches no file.
std::vector<std::filesystem::path> expand_files(const std::vector<std::string>& patterns);

}  // namespace dovetail::data
