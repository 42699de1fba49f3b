#include "dovetail/data/matrix/matrix.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <unordered_map>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/data/files/parquet.h"
#include "dovetail/data/files/utf8.h"
#include "dovetail/data/matrix/matrix_part.h"
#include "dovetail/data/matrix/matrix_rounding.h"
#include "dovetail/data/rows/cell_values.h"
#include "dovetail/data/rows/row_decoder.h"

namespace dovetail::data {
namespace {

constexpr size_t kBadKept = 5;

void add_cell(const Cell& cell, bool words_are_numbers, RowTaker& taker) {
  switch (cell.kind) {
    case Cell::Kind::kMissing:
      return taker.add_bad("no value");
    case Cell::Kind::kInteger:
      return taker.add_integer(cell.integer);
    case Cell::Kind::kBoolean:
      return taker.add_boolean(cell.integer != 0);
    case Cell::Kind::kReal:
      return taker.add(cell.real);
    case Cell::Kind::kText:
      return words_are_numbers ? taker.add_digits(*cell.text) : taker.add_string(*cell.text);
    case Cell::Kind::kList:
      return taker.add_bad("a list, where one number is wanted");
  }
}

MatrixParts read_parquet_parts(const std::filesystem::path& path, const MatrixOptions& options) {
  const auto file = open_parquet_columns(path);
  const std::vector<size_t> index = file->index_columns();
  const MatrixColumns columns(file->column_names(), options, path, index);
  const std::vector<bool> lists = file->select(columns.read);
  for (size_t i = 0; i < lists.size(); ++i)
    if (lists[i])
      throw UserError(fmt::format("column {} (`{}`) holds lists, not one number a row",
                                  columns.read[i], printable(columns.names[columns.read[i]])),
                      fmt::format("write a column for each element, or an array: numpy.save(other, "
                                  "numpy.stack(column)); --drop-columns {} leaves the column out",
                                  columns.read[i]),
                      path.string());
  MatrixParts result(columns);
  note_index(columns, index, "an index of pandas", result.notes);
  result.parts.resize(static_cast<size_t>(file->num_row_groups()));
  int64_t row = 0;
  for (int64_t group = 0; group < file->num_row_groups(); ++group) {
    const auto values = file->read(group);
    RowTaker taker(path, columns, options, result.parts[static_cast<size_t>(group)]);
    Cell cell;
    for (int64_t i = 0; i < file->group_rows(group); ++i) {
      taker.begin("row", ++row);
      for (const ColumnValues& column : values) {
        set_row_cell(column, i, cell);
        add_cell(cell, column.words_are_numbers, taker);
      }
      taker.end();
    }
  }
  return result;
}

/// Rewrites fields of text as numbers if all are numbers: "1" and "1.0" are then one class. Returns
/// true if all classes are numbers.
bool number_classes(std::vector<MatrixPart>& parts, char decimal) {
  const auto is_one = [&](const std::string& text) {
    double value = 0;
    return is_number(text, decimal, value);
  };
  using Kind = MatrixPart::ClassKind;
  for (const MatrixPart& part : parts)
    if (part.class_kind == Kind::kStrings ||
        (part.class_kind == Kind::kFields && !std::ranges::all_of(part.classes, is_one)))
      return false;
  for (MatrixPart& part : parts)
    if (part.class_kind == Kind::kFields)
      for (std::string& name : part.classes) name = class_of_digits(name, decimal);
  return true;
}

/// Merges the classes of all parts in one order. `index_of` maps each class of each part to its
/// index.
void join_classes(const std::vector<MatrixPart>& parts, Matrix& matrix,
                  std::vector<std::vector<int64_t>>& index_of) {
  for (const MatrixPart& part : parts)
    matrix.classes.insert(matrix.classes.end(), part.classes.begin(), part.classes.end());
  const auto value = [](const std::string& text) {
    return std::strtold(text.c_str(), nullptr);  // 64 bits of mantissa: any integer
  };
  std::ranges::sort(matrix.classes, [&](const std::string& a, const std::string& b) {
    if (matrix.numeric_classes && value(a) != value(b)) return value(a) < value(b);
    return a < b;
  });
  matrix.classes.erase(std::unique(matrix.classes.begin(), matrix.classes.end()),
                       matrix.classes.end());
  std::unordered_map<std::string, int64_t> place;
  for (const std::string& name : matrix.classes) place.emplace(name, std::ssize(place));
  for (const MatrixPart& part : parts) {
    index_of.emplace_back();
    for (const std::string& name : part.classes) index_of.back().push_back(place.at(name));
  }
}

void join_target(std::vector<MatrixPart>& parts, int64_t rows, const MatrixOptions& options,
                 Matrix& matrix) {
  if (options.target_kind == TargetKind::kNumber) {
    matrix.target = at::empty({rows}, at::kDouble);
    auto* to = matrix.target.mutable_data_ptr<double>();
    for (const MatrixPart& part : parts) to = std::copy(part.target.begin(), part.target.end(), to);
    return;
  }
  matrix.numeric_classes = number_classes(parts, options.decimal);
  std::vector<std::vector<int64_t>> index_of;
  join_classes(parts, matrix, index_of);
  matrix.target = at::empty({rows}, at::kLong);
  auto* to = matrix.target.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < parts.size(); ++i)
    for (const double index : parts[i].target) *to++ = index_of[i][static_cast<size_t>(index)];
}

/// Adds a warning for a column if float64 makes more than 1 % of its differing neighbouring numbers
/// equal.
void warn_of_wide_numbers(const MatrixParts& from, Matrix& matrix) {
  for (size_t c = 0; c < from.read.size(); ++c) {
    WideNumbers all;
    for (const MatrixPart& part : from.parts) {
      if (part.wide.empty()) continue;
      all.differ += part.wide[c].differ;
      all.merged += part.wide[c].merged;
    }
    if (100 * all.merged > all.differ)
      matrix.warnings.push_back(fmt::format(
          "column `{}`: float64 rounds its numbers of more than 15 digits. This makes {} of {} "
          "differing neighbours equal. Subtract a constant from the column before it is written",
          printable(from.read[c]), all.merged, all.differ));
  }
}

Matrix join(MatrixParts from, const MatrixOptions& options, const std::filesystem::path& path) {
  Matrix matrix;
  matrix.columns = std::move(from.columns);
  matrix.notes = std::move(from.notes);
  matrix.target_name = std::move(from.target);
  int64_t rows = 0, seen = 0;
  for (const MatrixPart& part : from.parts) {
    rows += part.rows - std::ssize(part.left_out);
    for (const int64_t row : part.left_out) matrix.left_out.push_back(seen + row);
    seen += part.rows;
    matrix.num_bad += part.num_bad;
    for (const std::string& bad : part.first_bad)
      if (matrix.first_bad.size() < kBadKept) matrix.first_bad.push_back(bad);
  }
  if (rows == 0)
    throw UserError(
        seen == 0 ? "there are no rows" : fmt::format("all {} rows have a bad value", seen),
        seen == 0 ? "the file has names of columns at most; give one with rows"
                  : "leave out the columns that are no numbers: --drop-columns",
        path.string());
  warn_of_wide_numbers(from, matrix);
  if (!options.target.empty()) join_target(from.parts, rows, options, matrix);
  round_values(from.parts, rows, options.type, matrix);
  return matrix;
}

/// Returns the column of that name, or of that index if no column has the name.
size_t find_column(const std::string& wanted, const std::string& option,
                   const std::vector<std::string>& names, const std::filesystem::path& path) {
  const auto found = std::ranges::find(names, wanted);
  if (found != names.end()) {
    const auto again = std::find(found + 1, names.end(), wanted);
    if (again == names.end()) return static_cast<size_t>(found - names.begin());
    throw UserError(fmt::format("{}: columns {} and {} are both named `{}`", option,
                                found - names.begin(), again - names.begin(), printable(wanted)),
                    fmt::format("name one by its place: {} {}", option, found - names.begin()),
                    path.string());
  }
  size_t place = 0;
  if (parse_number(wanted, place) && place < names.size()) return place;
  std::vector<std::string> shown_names;
  shown_names.reserve(names.size());
  for (const std::string& name : names) shown_names.push_back(printable(name));
  const std::string near = nearest_word(wanted, shown_names);
  throw UserError(fmt::format("{}: no column is named {}", option, printable(wanted)),
                  near.empty() ? fmt::format("the columns are {}", fmt::join(shown_names, ", "))
                               : fmt::format("did you mean {}?", near),
                  path.string());
}

}  // namespace

void note_index(const MatrixColumns& columns, const std::vector<size_t>& index, const char* what,
                std::vector<std::string>& notes) {
  for (const size_t column : index)
    if (std::ranges::find(columns.read, column) == columns.read.end())
      notes.push_back(fmt::format("column {} (`{}`) is {} and is left out; --columns names it",
                                  column, printable(columns.names[column]), what));
}

MatrixColumns::MatrixColumns(std::vector<std::string> all, const MatrixOptions& options,
                             const std::filesystem::path& path, const std::vector<size_t>& index)
    : names(std::move(all)) {
  const size_t wanted = options.target.empty()
                            ? kNone
                            : find_column(options.target, options.target_option, names, path);
  std::vector<bool> keep(names.size(), options.columns.empty());
  for (const std::string& column : options.columns)
    keep[find_column(column, options.columns_by, names, path)] = true;
  if (options.columns.empty())
    for (const size_t column : index) keep[column] = false;
  for (const std::string& column : options.drop_columns)
    keep[find_column(column, "--drop-columns", names, path)] = false;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i == wanted) target = read.size();
    if (keep[i] || i == wanted) read.push_back(i);
  }
  if (read.empty()) throw UserError("no column is left", {}, path.string());
  for (const size_t column : read)
    if (!is_valid_utf8(names[column]))
      throw UserError(fmt::format("the name of column {} (`{}`) is not UTF-8", column,
                                  printable(names[column])),
                      "save the file as UTF-8, for example by iconv -f latin1 -t utf-8",
                      path.string());
  if (wanted != kNone && read.size() == 1)
    throw UserError(fmt::format("{}: {} is the only column", options.target_option, options.target),
                    {}, path.string());
}

std::vector<std::string> MatrixColumns::features() const {
  std::vector<std::string> list;
  for (size_t i = 0; i < read.size(); ++i)
    if (i != target) list.push_back(names[read[i]]);
  return list;
}

at::Tensor Matrix::original(const at::Tensor& points) const { return points + origin; }
at::Tensor Matrix::shifted(const at::Tensor& points) const { return points - origin; }

std::filesystem::path matrix_file(const std::filesystem::path& path) {
  const std::string text = path.string();
  const size_t colon = text.rfind(':');
  std::error_code error;
  if (colon == std::string::npos || std::filesystem::exists(path, error)) return path;
  const std::string file = text.substr(0, colon);
  return std::filesystem::is_regular_file(file, error) ? std::filesystem::path(file) : path;
}

Matrix read_matrix(const std::filesystem::path& path, const MatrixOptions& options) {
  const std::filesystem::path file = matrix_file(path);
  const std::string member = file == path ? "" : path.string().substr(file.string().size() + 1);
  InputHead head = look_at_input(file);
  const bool text = head.kind == InputKind::kText;
  if (!text && (!options.delimiter.empty() || options.decimal != '.' || !options.header.empty()))
    throw UserError(
        fmt::format("--delimiter, --decimal and --header are for text, but this is {}", head.name),
        "leave them out", file.string());
  if (!member.empty() && head.kind != InputKind::kZip)
    throw UserError(
        fmt::format("this is {}, in which there is nothing named {}", head.name, printable(member)),
        "a name after a colon is for .npz", file.string());
  std::vector<std::string> notes;
  if (!head.is_plain()) notes.push_back("read as " + head.name);
  const auto parts = [&] {
    switch (head.kind) {
      case InputKind::kParquet:
        if (head.is_plain()) return read_parquet_parts(file, options);
        throw UserError(fmt::format("this is {}", head.name),
                        "unpack it first; Parquet is packed in itself", file.string());
      case InputKind::kNpy:
      case InputKind::kZip:
        return read_npy_parts(file, head, member, options);
      case InputKind::kText:
      case InputKind::kOther:
        break;
    }
    require_text(head, file, "a table: Parquet, .npy, .npz or text");
    return read_text_parts(file, head, options);
  };
  MatrixParts found = parts();
  found.notes.insert(found.notes.begin(), notes.begin(), notes.end());
  return join(std::move(found), options, file);
}

}  // namespace dovetail::data
