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

/// Statistics of consecutive numbers with more than 15 digits in a column. `differ` counts pairs of
/// neighbours that differ; `merged` counts the pairs among them that float64 makes equal.
struct WideNumbers {
  int64_t differ = 0, merged = 0;
  std::string last;  ///< previous number, as plain_number returns it; empty: none yet
  double last_value = 0;
};

/// Numbers of rows that are adjacent in a file.
struct MatrixPart {
  std::vector<double> values;  ///< kept rows, one after another, without the target
  std::vector<double> target;  ///< numbers, or indices of `classes`
  std::vector<std::string> classes;
  /// Type of `classes`. Fields of text become numbers if all of them are numbers.
  enum class ClassKind { kNumbers, kFields, kStrings } class_kind = ClassKind::kNumbers;
  std::vector<int64_t> left_out;  ///< rows of the part that are left out, from 0
  int64_t rows = 0;               ///< rows read, including the ones left out
  int64_t num_bad = 0;
  std::vector<std::string> first_bad;
  /// One entry per column that is read; empty: no column has such numbers.
  std::vector<WideNumbers> wide;
};

/// Columns of a file, and the columns to read.
struct MatrixColumns {
  std::vector<std::string> names;  ///< all columns
  std::vector<size_t> read;        ///< indices in `names`, ascending, including the target
  size_t target = kNone;           ///< index in `read`; kNone: no target
  static constexpr size_t kNone = static_cast<size_t>(-1);

  /// `index` lists columns to skip unless they are requested. Throws UserError, naming `path`, for
  /// a missing column and for a name that two columns have. Also throws if no column is left.
  MatrixColumns(std::vector<std::string> all, const MatrixOptions& options,
                const std::filesystem::path& path, const std::vector<size_t>& index = {});
  /// Returns the names of the columns of x.
  std::vector<std::string> features() const;
};

/// Adds a note for each column of `index` that is left out. `what` describes the column in the
/// note.
void note_index(const MatrixColumns& columns, const std::vector<size_t>& index, const char* what,
                std::vector<std::string>& notes);

/// Result of reading a file of one format.
struct MatrixParts {
  std::vector<std::string> columns;
  std::string target;
  std::vector<std::string> read;  ///< names of the columns that are read, including the target
  std::vector<MatrixPart> parts;
  std::vector<std::string> notes = {};

  explicit MatrixParts(const MatrixColumns& from)
      : columns(from.features()),
        target(from.target == MatrixColumns::kNone ? "" : from.names[from.read[from.target]]) {
    for (const size_t column : from.read) read.push_back(from.names[column]);
  }
};

/// Collects the rows of a part, in their order. Not thread-safe: each thread has its own.
class RowTaker {
 public:
  RowTaker(const std::filesystem::path& path, const MatrixColumns& columns,
           const MatrixOptions& options, MatrixPart& part)
      : path_(path), columns_(columns), options_(options), part_(part) {}

  /// Returns the line of a row, for messages. Set only if rows are not lines.
  std::function<int64_t(int64_t row)> line_of;

  /// Begins a row. `place` is "line" or "row"; `number` counts from 1.
  void begin(const char* place, int64_t number);
  /// Adds the value of the next column that is read.
  void add(double value);
  void add_integer(int64_t value);
  /// Adds 1 or 0. If the column holds classes, adds the text True or False, as pandas writes it.
  void add_boolean(bool value);
  /// Adds a field of a text file.
  void add_text(std::string_view text);
  /// Adds a value of a string column. If the column holds classes, the text is kept, even "NA" or
  /// "01".
  void add_string(std::string_view text);
  /// Adds a number, in digits, that neither int64 nor float64 holds.
  void add_digits(std::string_view digits);
  void add_bad(const std::string& reason);
  void end();
  /// Ends a row that is bad as a whole and discards its values. Replaces the call of `end`.
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

/// Returns one text for each number, whatever its form: "1" for "1", "01" and "1.0".
std::string class_of_digits(std::string_view text, char decimal);

MatrixParts read_text_parts(const std::filesystem::path& path, InputHead head,
                            const MatrixOptions& options);
/// Reads a .npy file, or array `member` of an archive. Empty `member`: the only array.
MatrixParts read_npy_parts(const std::filesystem::path& path, const InputHead& head,
                           const std::string& member, const MatrixOptions& options);

/// Maps array `name` of a zip archive, decompressed. `name` is without ".npy"; empty: the only
/// array. Sets `bytes` to its content.
MappedFile map_zip_member(const std::filesystem::path& path, const std::string& name,
                          std::string_view& bytes);

}  // namespace dovetail::data
