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

namespace dovetail {

/// Numbers of more than 15 digits that follow one another in a column: pairs that differ, and those
/// that float64 makes equal.
struct WideNumbers {
  int64_t differ = 0, merged = 0;
  std::string last;  ///< as plain_number has it; empty: none yet
  double last_value = 0;
};

/// Rows that lay together in a file, as numbers.
struct MatrixPart {
  std::vector<double> values;  ///< rows that were kept, one after another, without the target
  std::vector<double> target;  ///< numbers, or indices of `classes`
  std::vector<std::string> classes;
  /// Type of `classes`. Fields of a text are numbers if all of them are.
  enum class ClassKind { kNumbers, kFields, kStrings } class_kind = ClassKind::kNumbers;
  std::vector<int64_t> left_out;  ///< of the part's rows, from 0
  int64_t rows = 0;               ///< seen
  int64_t num_bad = 0;
  std::vector<std::string> first_bad;
  std::vector<WideNumbers> wide;  ///< one for each column that is read; empty: no such numbers
};

/// The columns of a file, and those that are read.
struct MatrixColumns {
  std::vector<std::string> names;  ///< all
  std::vector<size_t> read;        ///< ascending, the target among them
  size_t target = kNone;           ///< place in `read`
  static constexpr size_t kNone = static_cast<size_t>(-1);

  /// `index`: columns to pass over unless they are asked for. Throws UserError, naming `path`, for
  /// a column that is not there or whose name is another's too, and when none is left.
  MatrixColumns(std::vector<std::string> all, const MatrixOptions& options,
                const std::filesystem::path& path, const std::vector<size_t>& index = {});
  /// Names of the columns of x.
  std::vector<std::string> features() const;
};

/// Says which columns of `index` are left out.
void note_index(const MatrixColumns& columns, const std::vector<size_t>& index, const char* what,
                std::vector<std::string>& notes);

/// Result of a reader of one format.
struct MatrixParts {
  std::vector<std::string> columns;
  std::string target;
  std::vector<std::string> read;  ///< names of the columns that are read, the target among them
  std::vector<MatrixPart> parts;
  std::vector<std::string> notes = {};

  explicit MatrixParts(const MatrixColumns& from)
      : columns(from.features()),
        target(from.target == MatrixColumns::kNone ? "" : from.names[from.read[from.target]]) {
    for (const size_t column : from.read) read.push_back(from.names[column]);
  }
};

/// Takes the rows of a part, in their order; one a thread.
class RowTaker {
 public:
  RowTaker(const std::filesystem::path& path, const MatrixColumns& columns,
           const MatrixOptions& options, MatrixPart& part)
      : path_(path), columns_(columns), options_(options), part_(part) {}

  /// Lines of rows for messages, where rows are not lines.
  std::function<int64_t(int64_t row)> line_of;

  /// `place` is "line" or "row", `number` counts from 1.
  void begin(const char* place, int64_t number);
  /// The next of the columns that are read.
  void add(double value);
  void add_integer(int64_t value);
  /// A number, 1 or 0. As a class it is True or False, as in a text of pandas.
  void add_boolean(bool value);
  /// A field of a text.
  void add_text(std::string_view text);
  /// A value of a string column. As a class it is the text that it is, even "NA" or "01".
  void add_string(std::string_view text);
  /// A number that neither int64 nor float64 holds, in digits.
  void add_digits(std::string_view digits);
  void add_bad(const std::string& reason);
  void end();
  /// The row is bad as a whole, whatever of it was added. Takes the place of `end`.
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

/// One text for each number, whatever its form: "1" for "1", "01" and "1.0".
std::string class_of_digits(std::string_view text, char decimal);

MatrixParts read_text_parts(const std::filesystem::path& path, InputHead head,
                            const MatrixOptions& options);
/// `member` of an archive, or its only array.
MatrixParts read_npy_parts(const std::filesystem::path& path, const InputHead& head,
                           const std::string& member, const MatrixOptions& options);

/// The part of an archive of the type zip, unpacked and mapped. `name` without ".npy"; empty: the
/// only one.
MappedFile map_zip_member(const std::filesystem::path& path, const std::string& name,
                          std::string_view& bytes);

}  // namespace dovetail
