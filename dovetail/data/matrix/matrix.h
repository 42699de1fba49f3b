#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dovetail::data {

/// Treatment of a value that is not a finite float32: missing, text, NaN, infinite or too large.
/// Also the treatment of a row with the wrong number of fields.
enum class BadValues {
  kError,  ///< throw UserError that names line and column
  /// Use 0. A row without its target is left out; a row of the wrong width is an error.
  kZero,
  kSkip,  ///< leave the row out
};

/// Type of the column to predict.
enum class TargetKind {
  kNumber,  ///< float64
  kClass,   ///< classes: numbers and texts as they are
};

struct MatrixOptions {
  BadValues bad_values = BadValues::kError;
  std::vector<std::string> drop_columns;  ///< columns to leave out, by name or index
  /// Columns to read, by name or index. Empty: all columns except an index that pandas wrote.
  std::vector<std::string> columns;
  std::string target;  ///< column to predict, by name or index; empty: none
  TargetKind target_kind = TargetKind::kNumber;
  std::string delimiter;  ///< delimiter of text: one character, "tab" or "blank"; empty: detect it
  char decimal = '.';     ///< decimal mark of text
  /// First line of text. "yes": names of columns, "no": a row, empty: detect it.
  std::string header;
};

/// Table of numbers. Each value is origin + x.
struct Matrix {
  at::Tensor x;       ///< (N, D) float32, contiguous
  at::Tensor origin;  ///< (D) float64; 0 if float32 holds the column as well without it
  /// D names. If the file has no names: c0, c1 and so on.
  std::vector<std::string> columns;
  std::vector<int64_t> left_out;  ///< rows of the file that are not among the N, from 0, ascending
  int64_t num_bad = 0;            ///< bad values and bad rows, without dropped columns
  std::vector<std::string> first_bad;  ///< the first few, such as "line 3, column 1 (`age`): ..."
  std::string target_name;
  at::Tensor target;                 ///< (N) float64, or int64 indices of `classes`
  std::vector<std::string> classes;  ///< ascending: numbers by value, otherwise by text
  bool numeric_classes = false;
  std::vector<std::string>
      notes;  ///< automatic choices: delimiter, decompression, columns left out
  std::vector<std::string> warnings;  ///< columns whose values float32 cannot distinguish

  /// Converts points (M, D) float64 from the coordinates of x to the coordinates of the file
  /// (`original`) and back (`shifted`).
  at::Tensor original(const at::Tensor& points) const;
  at::Tensor shifted(const at::Tensor& points) const;
};

/// Reads a table of numbers. The first bytes identify Parquet and NumPy's .npy and .npz; anything
/// else is text. An .npz must have one array, or `path` is "file.npz:name".
///
/// - Text has a delimiter or blanks between its fields. With blanks, lines that begin with # are
///   skipped.
/// - Text may be compressed and have any encoding of data/files/open_input.h. Empty lines are
/// skipped.
/// - The first line is a header unless all its fields are numbers or missing.
/// - The names 0, 1, 2 and so on, which pandas writes, are a header, too.
/// - Booleans count as 0 and 1.
/// - In messages, lines and rows count from 1. Columns always count from 0.
///
/// Values are read in float64. A column that float32 would round by more than its spread allows is
/// centred before it is rounded (`origin`).
///
/// Throws UserError for
///
/// - a file that cannot be read
/// - a column that does not exist or whose name is not unique
/// - a table without columns or rows
/// - a bad value or row, if `bad_values` says so
Matrix read_matrix(const std::filesystem::path& path, const MatrixOptions& options = {});

/// Returns the name of a column without a name: "c0" for column 0. It is not a number, so that a
/// line of these names is a header.
std::string numbered_column(size_t column);

/// Returns the path of the file in "file.npz:name". Returns any other path unchanged.
std::filesystem::path matrix_file(const std::filesystem::path& path);

}  // namespace dovetail::data
