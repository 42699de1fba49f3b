#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dovetail/data/files/open_input.h"
#include "dovetail/data/matrix/matrix.h"

namespace dovetail::data {

/// Statistics of the wide numbers of a column. A wide number has more than 15 digits, so float64
/// may round it. Each is compared with the previous wide number of the column, to warn if float64
/// makes different numbers equal.
struct WideNumbers {
  /// `differ` is the number of pairs of successive wide numbers that differ. `merged` is the number
  /// of these pairs that are equal in float64.
  int64_t differ = 0, merged = 0;
  std::string last;       ///< previous wide number, as plain_number returns it; empty: none yet
  double last_value = 0;  ///< `last` in float64
};

/// Result of reading one part of a file. A part is a range of adjacent rows; threads read the parts
/// in parallel. Matrix and MatrixOptions explain bad values, target and classes.
struct MatrixPart {
  /// Values row by row, without the target and without rows that are left out.
  std::vector<double> values;
  /// Target of each row of `values`: a number, or an index in `classes`.
  std::vector<double> target;
  std::vector<std::string> classes;  ///< names of the part's classes, in the order of appearance
  /// Source of `classes`: numbers, fields of a text file, or strings of a string column. If all
  /// classes of the file are numbers or read as numbers, read_matrix later compares fields by
  /// value. The fields "1" and "1.0" are then one class.
  enum class ClassKind { kNumbers, kFields, kStrings } class_kind = ClassKind::kNumbers;
  std::vector<int64_t> left_out;       ///< rows of the part that are left out, from 0
  int64_t rows = 0;                    ///< rows read, including the ones left out
  int64_t num_bad = 0;                 ///< as Matrix::num_bad, in this part
  std::vector<std::string> first_bad;  ///< as Matrix::first_bad, in this part
  /// One entry per column that is read. Empty: no column of the part has wide numbers.
  std::vector<WideNumbers> wide;
};

/// Names of the columns of a file, and a selection of the columns to read.
struct MatrixColumns {
  std::vector<std::string> names;  ///< names of all columns of the file
  /// Columns to read, including the target: indices in `names`, ascending.
  std::vector<size_t> read;
  size_t target = kNone;  ///< index in `read` of the target; kNone: no target
  static constexpr size_t kNone = static_cast<size_t>(-1);

  /// `all` has the names of all columns of the file. Selects from them as `options` says. `index`
  /// has the indices of the columns of row labels, which are read only if `options` names them.
  /// Throws UserError, naming `path`, if a requested column does not exist or two columns have the
  /// requested name. Also throws if no column is left besides the target, or if a selected name is
  /// not UTF-8.
  MatrixColumns(std::vector<std::string> all, const MatrixOptions& options,
                const std::filesystem::path& path, const std::vector<size_t>& index = {});
  /// Returns the names of the columns to read without the target: the columns of Matrix::x.
  std::vector<std::string> features() const;
};

/// Adds a note to `notes` for each column of `index` (row labels) that is not read. `what`
/// describes the column in the note. Example: "an index of pandas".
void note_index(const MatrixColumns& columns, const std::vector<size_t>& index, const char* what,
                std::vector<std::string>& notes);

/// Result of reading a whole file. A function for each format returns it; read_matrix then joins
/// the parts into a Matrix.
struct MatrixParts {
  std::vector<std::string> columns;  ///< Matrix::columns
  std::string target;                ///< Matrix::target_name
  std::vector<std::string> read;     ///< names of the columns that are read, including the target
  std::vector<MatrixPart> parts;     ///< in the order of the file
  std::vector<std::string> notes = {};  ///< Matrix::notes

  explicit MatrixParts(const MatrixColumns& from)
      : columns(from.features()),
        target(from.target == MatrixColumns::kNone ? "" : from.names[from.read[from.target]]) {
    for (const size_t column : from.read) read.push_back(from.names[column]);
  }
};

/// Collects the rows of a part in a MatrixPart. For each row, call `begin`, then one `add` function
/// for each column of MatrixColumns::read, then `end`. The `add` functions apply
/// MatrixOptions::bad_values to bad values. Not thread-safe: each thread has its own.
class RowTaker {
 public:
  /// Collects into `part`. All arguments must outlive this object.
  RowTaker(const std::filesystem::path& path, const MatrixColumns& columns,
           const MatrixOptions& options, MatrixPart& part)
      : path_(path), columns_(columns), options_(options), part_(part) {}

  /// Maps the `number` passed to `begin` to the number that messages show. A reader that counts
  /// rows sets it if messages should show line numbers. Empty: messages show `number`.
  std::function<int64_t(int64_t row)> line_of;

  /// Begins a row. Messages name it by `place`, which is "line" or "row", and `number`, from 1.
  void begin(const char* place, int64_t number);
  /// Adds a number as the value of the next column.
  void add(double value);
  /// Adds an integer as the value of the next column. An integer of magnitude 2^53 or more counts
  /// as a wide number (WideNumbers).
  void add_integer(int64_t value);
  /// Adds 1 or 0. If the column is a target of classes, adds the class True or False instead, as
  /// pandas writes it.
  void add_boolean(bool value);
  /// Adds a field of a text file: parses it as a number. If the column is a target of classes, the
  /// field is a class. A field that means a missing number, such as "NA", is a bad value.
  void add_text(std::string_view text);
  /// Adds a value of a string column of Parquet, as `add_text` does. But if the column is a target
  /// of classes, each different text is a class of its own. So "NA" is a class, and "01" and "1"
  /// are two classes.
  void add_string(std::string_view text);
  /// Adds a number that neither int64 nor float64 may hold exactly, as decimal digits.
  void add_digits(std::string_view digits);
  /// Adds a bad value for the next column. `reason` is the end of the message about it. Throws
  /// UserError if MatrixOptions::bad_values is kError.
  void add_bad(const std::string& reason);
  /// Ends the row. One value must have been added for each column to read.
  void end();
  /// Ends a bad row instead of `end`: leaves the row out. Throws UserError, with `reason`, unless
  /// MatrixOptions::bad_values is kSkip.
  void end_bad(const std::string& reason);

 private:
  bool is_target() const { return column_ == columns_.target; }
  void add_class(std::string name);
  void note_wide(std::string digits, double value);
  int64_t shown_number() const { return line_of ? line_of(number_) : number_; }

  const std::filesystem::path& path_;
  const MatrixColumns& columns_;
  const MatrixOptions& options_;
  MatrixPart& part_;
  std::unordered_map<std::string, size_t> class_index_;
  const char* place_ = "";
  int64_t number_ = 0;
  size_t column_ = 0, row_begin_ = 0, target_begin_ = 0;
  bool keep_ = true, has_target_ = true;
};

/// Returns the class name of a number that is written as `text`. All ways to write a number give
/// one name: "1" for "1", "01" and "1.0". Returns other text unchanged, without blanks at its ends.
std::string class_of_digits(std::string_view text, char decimal);

/// Reads a text file.
MatrixParts read_text_parts(const std::filesystem::path& path, InputHead head,
                            const MatrixOptions& options);
/// Reads a .npy file, or array `member` of an .npz archive. If `member` is empty, the archive must
/// have one array.
MatrixParts read_npy_parts(const std::filesystem::path& path, const InputHead& head,
                           const std::string& member, const MatrixOptions& options);

/// Returns a mapped file that holds the decompressed array `name` of a zip archive (.npz). Sets
/// `bytes` to the bytes of the array in that file. `name` is without ".npy". If it is empty, the
/// archive must have one array.
MappedFile map_zip_member(const std::filesystem::path& path, const std::string& name,
                          std::string_view& bytes);

}  // namespace dovetail::data
