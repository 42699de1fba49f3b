#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dovetail {

/// What becomes of a value that is no finite number of float32: missing, text, NaN, infinite, too large.
enum class BadValues {
  kError,  ///< UserError that names its line and column
  kZero,   ///< it is 0
  kSkip,   ///< its row is left out
};

struct MatrixOptions {
  BadValues bad_values = BadValues::kError;
  std::vector<int64_t> drop_columns;  ///< from 0
};

struct Matrix {
  at::Tensor x;                        ///< (N, D) float32, contiguous
  std::vector<std::string> columns;    ///< D names; "c" and the column's number where the file has none
  std::vector<int64_t> left_out;       ///< rows of the file without N, from 0, ascending
  int64_t num_bad = 0;                 ///< values, dropped columns not counted
  std::vector<std::string> first_bad;  ///< what the first few were: "line 3, column 1 (`age`): ..."
};

/// A table of numbers in float32: Parquet (.parquet), comma-separated text (.csv, RFC 4180), tab-separated (.tsv),
/// NumPy
/// (.npy: one or two dimensions of numbers), and under any other name text with blanks between numbers, where lines
/// that are empty or begin with # are passed over. The first line of a text is its header unless all of it are numbers.
/// Booleans count as 0 and 1. Lines and rows count from 1 in messages, columns from 0 everywhere.
///
/// Throws UserError for a file that cannot be read, rows of unequal width, a dropped column that is not there, none or
/// no rows left, and as `bad_values` says.
Matrix read_matrix(const std::filesystem::path& path, const MatrixOptions& options = {});

}  // namespace dovetail
