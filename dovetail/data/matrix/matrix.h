#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dovetail::data {

/// Treatment of bad values and bad rows. A bad value is missing, text, NaN, infinite or, with
/// MatrixType::kFloat32, beyond the range of float32. A bad row has the wrong number of fields.
enum class BadValues {
  kError,  ///< throw UserError that names line and column
  /// Use 0 for a bad value. Leave the row out if the bad value is its target (the column to
  /// predict, MatrixOptions::target). Throw UserError for a bad row.
  kZero,
  kSkip,  ///< leave out each row that is bad or has a bad value
};

/// Type of the target, the column to predict.
enum class TargetKind {
  kNumber,  ///< numbers, read as float64
  kClass,   ///< classes: each different number or text is one class
};

/// Number format of Matrix::x.
enum class MatrixType {
  kFloat32,  ///< float32, with an origin for columns that it would round coarsely
  kExact,    ///< float32 if it holds all values exactly, otherwise float64; the origin is 0
  kFloat64,  ///< float64; the origin is 0
};

/// Options of read_matrix. A column is given by its name, or by its index from 0 if no column has
/// that name.
struct MatrixOptions {
  BadValues bad_values = BadValues::kError;
  std::vector<std::string> drop_columns;  ///< columns to leave out
  /// Columns to read. Empty: all columns except the row labels (index) of a data frame that pandas
  /// or R wrote.
  std::vector<std::string> columns;
  std::string columns_by = "--columns";  ///< option or model that asks for `columns`, in messages
  std::string target;  ///< column to predict, or to read apart for another use; empty: none
  std::string target_option = "--target";  ///< option that names `target`, for messages
  TargetKind target_kind = TargetKind::kNumber;
  MatrixType type = MatrixType::kFloat32;
  /// Delimiter between the fields of a text file: one character, "tab" or "blank". Empty: detect
  /// it.
  std::string delimiter;
  char decimal = '.';  ///< mark before the fraction of a number in a text file
  /// Meaning of the first line of a text file. "yes": names of columns; "no": a row; empty: detect
  /// it.
  std::string header;
};

/// Table of numbers, and the target if one was asked for. N rows and D columns, without the target.
/// The value of the file in row n and column d is x[n, d] + origin[d], up to rounding.
struct Matrix {
  at::Tensor x;  ///< (N, D) float32 or float64 (MatrixType), contiguous
  /// (D) float64. One number per column, subtracted from the column's values before rounding to
  /// float32, so that digits are not lost. It is 0 for a column that float32 holds well enough
  /// without it.
  at::Tensor origin;
  /// D names. If the file has no names: c0, c1 and so on.
  std::vector<std::string> columns;
  /// Rows of the file that are left out of `x` because they are bad or have a bad value. Counted
  /// from 0, ascending.
  std::vector<int64_t> left_out;
  int64_t num_bad = 0;  ///< number of bad values and bad rows in the columns that were read
  /// Messages about the first few bad values and bad rows. Example: "line 3, column 1 (`age`): no
  /// value".
  std::vector<std::string> first_bad;
  std::string target_name;  ///< name of the target column; empty: no target
  /// (N): float64 numbers, or int64 indices into `classes` if TargetKind::kClass was asked for.
  at::Tensor target;
  /// Names of the classes, ascending: by value if all are numbers, otherwise as texts.
  std::vector<std::string> classes;
  bool numeric_classes = false;  ///< true if all classes are numbers
  /// Choices that the reader made, for the log: delimiter, decompression, columns left out.
  std::vector<std::string> notes;
  /// Warnings about columns in which rounding makes different values equal.
  std::vector<std::string> warnings;

  /// Returns `points` + origin, (M, D) float64: converts points in units of `x` to values as in the
  /// file.
  at::Tensor original(const at::Tensor& points) const;
  /// Returns `points` - origin: the inverse of `original`.
  at::Tensor shifted(const at::Tensor& points) const;
};

/// Reads a table of numbers from Parquet, NumPy's .npy and .npz, or text. The first bytes of the
/// file tell which it is. An .npz must have one array; otherwise, `path` must name it:
/// "file.npz:name".
///
/// - The fields of a text file have a delimiter or blanks (spaces and tabs) between them. With
///   blanks, lines that begin with # are skipped.
/// - A text file may be compressed and have any encoding of data/files/open_input.h. Its empty
///   lines are skipped.
/// - The first line of a text file is a header unless all its fields are numbers, True, False or
///   missing.
/// - A first line with the numbers 0, 1, 2 and so on is a header, too: pandas gives these names to
///   unnamed columns.
/// - Booleans count as 0 and 1.
/// - In messages, lines and rows count from 1. Columns always count from 0.
///
/// Values are read as float64. MatrixType::kFloat32 rounds them to float32. If that would round a
/// column coarsely compared with its range, `origin` is subtracted first (see
/// data/matrix/matrix_rounding.h).
///
/// Throws UserError for
///
/// - a file that cannot be read
/// - a column that does not exist or whose name is not unique
/// - a table without columns or rows
/// - a bad value or a bad row, if `bad_values` makes it an error
Matrix read_matrix(const std::filesystem::path& path, const MatrixOptions& options = {});

/// Returns the name to give to a column that has none in the file: "c0" for column 0. Such a name
/// is not a number. So if a file is written with these names, its first line is recognized as a
/// header.
std::string numbered_column(size_t column);

/// Returns the part before the colon of "file.npz:name", where `name` is an array in the file.
/// Returns any other path unchanged.
std::filesystem::path matrix_file(const std::filesystem::path& path);

}  // namespace dovetail::data
