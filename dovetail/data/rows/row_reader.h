#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_config.h"
#include "dovetail/data/rows/row_decoder.h"

namespace dovetail {

/// The rows of the files of a config, in blocks that can be read in any order: a row group of
/// Parquet, about 2 MiB of text. Opening it finds where blocks begin, without decoding (one pass
/// over the bytes of text, the footer of Parquet).
class RowReader {
 public:
  /// Throws UserError for a config that is no good, files that cannot be read and columns that they
  /// lack.
  explicit RowReader(const RowsConfig& config);
  ~RowReader();

  const RowDecoder& decoder() const;
  int64_t num_rows() const;             ///< as the files hold them, bad ones counted
  int64_t num_validation_rows() const;  ///< the last ones: floor(num_rows * validation_fraction)
  int64_t num_blocks() const;
  int64_t num_train_blocks() const;  ///< the blocks from here on are validation: no block is both
  const std::filesystem::path& file_of(int64_t block) const;
  int64_t first_row(int64_t block) const;  ///< of the rows of its file, from 0

  /// The rows of a block that could be understood, and the count of the others. Only the columns of
  /// the config are decoded (of Parquet, only they are read). Safe from several threads.
  RowBlock read(int64_t block) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The files that names and globs stand for: in the order given, those of a glob by name. Throws
/// UserError for one that is not there.
std::vector<std::filesystem::path> expand_files(const std::vector<std::string>& patterns);

}  // namespace dovetail
