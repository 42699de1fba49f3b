#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dovetail {

/// Treatment of a value that is no finite number of float32 (missing, text, NaN, infinite, too
/// large), and of a row with another number of fields.
enum class BadValues {
  kError,  ///< UserError that names line and column
  kZero,   ///< 0 in its place; a row without its target is left out, a row of the wrong width is an
           ///< error
  kSkip,   ///< leave its row out
};

/// Content of a column to predict.
enum class TargetKind {
  kNumber,  ///< float64
  kClass,   ///< numbers and texts as they are
};

struct MatrixOptions {
  BadValues bad_values = BadValues::kError;
  std::vector<std::string> drop_columns;  ///< by name or place
  std::vector<std::string>
      columns;         ///< to read, by name or place; empty: all but an index of pandas
  std::string target;  ///< a column by name or place; empty: none
  TargetKind target_kind = TargetKind::kNumber;
  std::string delimiter;  ///< in a text: one character, "tab" or "blank"; empty: found out
  char decimal = '.';     ///< in a text
  std::string header;  ///< first line of a text: "yes" for names, "no" for a row, empty: found out
};

/// A table: value = origin + x.
struct Matrix {
  at::Tensor x;       ///< (N, D) float32, contiguous
  at::Tensor origin;  ///< (D) float64; 0 where float32 holds the values as well without it
  std::vector<std::string>
      columns;                    ///< D names; "c" and the column's number where the file has none
  std::vector<int64_t> left_out;  ///< rows of the file without N, from 0, ascending
  int64_t num_bad = 0;            ///< values and rows, dropped columns not counted
  std::vector<std::string> first_bad;  ///< the first few: "line 3, column 1 (`age`): ..."
  std::string target_name;
  at::Tensor target;                 ///< (N) float64, or int64 indices of `classes`
  std::vector<std::string> classes;  ///< in rising order: numbers by value, otherwise by text
  bool numeric_classes = false;
  std::vector<std::string> notes;     ///< choices made: delimiter, packing, columns passed over
  std::vector<std::string> warnings;  ///< columns whose values float32 cannot tell apart

  /// Points (M, D) float64 of the space of x in the file's coordinates, and back.
  at::Tensor original(const at::Tensor& points) const;
  at::Tensor shifted(const at::Tensor& points) const;
};

/// A table of numbers: Parquet, NumPy's .npy, .npz (with one array, or "file.npz:name") by their
/// bytes, everything else as text. A text has a delimiter, or blanks between its fields; then lines
/// that begin with # are passed over. Text may be packed and in any encoding of
/// data/files/open_input.h. Empty lines are passed over. The first line is a header unless all of
/// it are numbers or missing; 0, 1, 2 and so on, the names that pandas gives, are a header too.
/// Booleans count as 0 and 1. Lines and rows count from 1 in messages, columns from 0 everywhere.
///
/// Values are read in float64. A column that float32 would round by more than its spread allows is
/// centred before it is rounded (`origin`).
///
/// Throws UserError for a file that cannot be read, a column that is not there or is named twice,
/// none or no rows left, and as `bad_values` says.
Matrix read_matrix(const std::filesystem::path& path, const MatrixOptions& options = {});

/// Name of a column without one: "c0". No number, so that a line of such names is a header.
std::string numbered_column(size_t column);

/// The path of the file in "file.npz:name"; any other path as it is.
std::filesystem::path matrix_file(const std::filesystem::path& path);

}  // namespace dovetail
