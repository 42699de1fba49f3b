#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/data/matrix.h"

namespace dovetail {

/// Rows that lay together in a file, as numbers.
struct MatrixPart {
  std::vector<float> values;      ///< of the rows that were kept, one after another
  std::vector<int64_t> left_out;  ///< of the part's rows, from 0
  int64_t rows = 0;               ///< seen
  int64_t num_bad = 0;
  std::vector<std::string> first_bad;
};

/// The columns of a file, and which of them are kept.
struct MatrixColumns {
  std::vector<std::string> names;  ///< all
  std::vector<size_t> kept;        ///< ascending

  /// Throws UserError, naming `path`, for a dropped column that is not there and when none is left.
  MatrixColumns(std::vector<std::string> all, const std::vector<int64_t>& dropped, const std::filesystem::path& path);
};

/// Takes the rows of a part, in their order; one a thread.
class RowTaker {
 public:
  RowTaker(const std::filesystem::path& path, const MatrixColumns& columns, BadValues policy, MatrixPart& part)
      : path_(path), columns_(columns), policy_(policy), part_(part) {}

  /// `place` is "line" or "row", `number` counts from 1.
  void begin(const char* place, int64_t number);
  /// The next of the kept columns.
  void add(double value);
  void add_text(std::string_view text);
  void add_bad(const std::string& reason);
  void end();

 private:
  const std::filesystem::path& path_;
  const MatrixColumns& columns_;
  const BadValues policy_;
  MatrixPart& part_;
  const char* place_ = "";
  int64_t number_ = 0;
  size_t column_ = 0, row_begin_ = 0;
  bool keep_ = true;
};

/// What a column without a name is called: "c0". No number, so that a line of such names is a header.
std::string numbered_column(size_t column);

/// Whether `text` is a number, "nan" and "inf" among them.
bool is_number(std::string_view text, double& value);

/// The parts of a text in their order: of `delimiter`, or of blanks where it is 0.
std::vector<MatrixPart> read_text_parts(const std::filesystem::path& path, char delimiter, const MatrixOptions& options,
                                        std::vector<std::string>& columns);

std::vector<MatrixPart> read_npy_parts(const std::filesystem::path& path, const MatrixOptions& options,
                                       std::vector<std::string>& columns);

}  // namespace dovetail
