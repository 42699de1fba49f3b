#include "dovetail/data/matrix.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/data/cell_values.h"
#include "dovetail/data/matrix_part.h"
#include "dovetail/data/parquet.h"
#include "dovetail/data/row_decoder.h"

namespace dovetail {
namespace {

constexpr size_t kBadKept = 5;

void add_cell(const Cell& cell, RowTaker& taker) {
  switch (cell.kind) {
    case Cell::Kind::kMissing:
      return taker.add_bad("no value");
    case Cell::Kind::kInteger:
      return taker.add(static_cast<double>(cell.integer));
    case Cell::Kind::kReal:
      return taker.add(cell.real);
    case Cell::Kind::kText:
      return taker.add_text(*cell.text);
    case Cell::Kind::kList:
      return taker.add_bad("a list, where one number is wanted");
  }
}

std::vector<MatrixPart> read_parquet_parts(const std::filesystem::path& path, const MatrixOptions& options,
                                           std::vector<std::string>& names) {
  const auto file = open_parquet_columns(path);
  const MatrixColumns columns(file->column_names(), options.drop_columns, path);
  for (const size_t column : columns.kept) names.push_back(columns.names[column]);
  file->select(names);
  std::vector<MatrixPart> parts(static_cast<size_t>(file->num_row_groups()));
  int64_t row = 0;
  for (int64_t group = 0; group < file->num_row_groups(); ++group) {
    const auto values = file->read(group);
    RowTaker taker(path, columns, options.bad_values, parts[static_cast<size_t>(group)]);
    Cell cell;
    std::string_view text;
    cell.text = &text;
    for (int64_t i = 0; i < file->group_rows(group); ++i) {
      taker.begin("row", ++row);
      for (const ColumnValues& column : values) {
        set_row_cell(column, i, cell);
        add_cell(cell, taker);
      }
      taker.end();
    }
  }
  return parts;
}

Matrix join(std::vector<MatrixPart> parts, std::vector<std::string> columns, const std::filesystem::path& path) {
  Matrix matrix{.columns = std::move(columns)};
  const auto width = static_cast<int64_t>(matrix.columns.size());
  int64_t rows = 0, seen = 0;
  for (const MatrixPart& part : parts) {
    rows += part.rows - std::ssize(part.left_out);
    for (const int64_t row : part.left_out) matrix.left_out.push_back(seen + row);
    seen += part.rows;
    matrix.num_bad += part.num_bad;
    for (const std::string& bad : part.first_bad)
      if (matrix.first_bad.size() < kBadKept) matrix.first_bad.push_back(bad);
  }
  if (rows == 0)
    throw UserError(seen == 0 ? "there are no rows" : fmt::format("all {} rows have a bad value", seen),
                    seen == 0 ? "" : "leave out the columns that are no numbers: --drop-columns", path.string());
  matrix.x = at::empty({rows, width}, at::kFloat);
  auto* to = matrix.x.mutable_data_ptr<float>();
  for (MatrixPart& part : parts) {
    to = std::copy(part.values.begin(), part.values.end(), to);
    part = {};
  }
  return matrix;
}

}  // namespace

MatrixColumns::MatrixColumns(std::vector<std::string> all, const std::vector<int64_t>& dropped,
                             const std::filesystem::path& path)
    : names(std::move(all)) {
  for (const int64_t column : dropped) {
    if (column < 0 || column >= std::ssize(names))
      throw UserError(fmt::format("there is no column {} to drop: the file has {}", column, names.size()),
                      "columns count from 0", path.string());
  }
  for (size_t i = 0; i < names.size(); ++i)
    if (std::find(dropped.begin(), dropped.end(), static_cast<int64_t>(i)) == dropped.end()) kept.push_back(i);
  if (kept.empty()) throw UserError("no column is left", {}, path.string());
}

std::string numbered_column(size_t column) { return fmt::format("c{}", column); }

bool is_number(std::string_view text, double& value) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ptr != text.data() + text.size() || text.empty()) return false;
  if (result.ec == std::errc::result_out_of_range) value = std::strtod(std::string(text).c_str(), nullptr);
  return true;
}

void RowTaker::begin(const char* place, int64_t number) {
  place_ = place;
  number_ = number;
  column_ = 0;
  row_begin_ = part_.values.size();
  keep_ = true;
}

void RowTaker::add(double value) {
  const auto number = static_cast<float>(value);
  if (!std::isfinite(number)) {
    add_bad(std::isfinite(value) ? fmt::format("{} is beyond float32", value) : fmt::format("{} is not finite", value));
    return;
  }
  part_.values.push_back(number);
  ++column_;
}

void RowTaker::add_text(std::string_view text) {
  double value = 0;
  if (is_number(text, value)) {
    add(value);
  } else {
    add_bad(text.empty() ? "no value" : shown(text) + " is not a number");
  }
}

void RowTaker::add_bad(const std::string& reason) {
  const size_t column = columns_.kept.at(column_++);
  const auto message = [&] {
    return fmt::format("{} {}, column {} (`{}`): {}", place_, number_, column, printable(columns_.names[column]),
                       reason);
  };
  if (policy_ == BadValues::kError)
    throw UserError(message(),
                    fmt::format("--bad-values zero puts 0 in such places, --bad-values skip leaves such rows "
                                "out, --drop-columns {} leaves the column out",
                                column),
                    path_.string());
  ++part_.num_bad;
  if (part_.first_bad.size() < kBadKept) part_.first_bad.push_back(message());
  part_.values.push_back(0.0f);
  keep_ = keep_ && policy_ == BadValues::kZero;
}

void RowTaker::end() {
  DOVETAIL_CHECK(column_ == columns_.kept.size(), "{} of {} columns", column_, columns_.kept.size());
  if (!keep_) {
    part_.values.resize(row_begin_);
    part_.left_out.push_back(part_.rows);
  }
  ++part_.rows;
}

Matrix read_matrix(const std::filesystem::path& path, const MatrixOptions& options) {
  const std::string extension = path.extension().string();
  std::vector<std::string> columns;
  std::vector<MatrixPart> parts;
  if (extension == ".parquet") {
    parts = read_parquet_parts(path, options, columns);
  } else if (extension == ".npy") {
    parts = read_npy_parts(path, options, columns);
  } else {
    parts = read_text_parts(path, extension == ".csv" ? ',' : extension == ".tsv" ? '\t' : '\0', options, columns);
  }
  return join(std::move(parts), std::move(columns), path);
}

}  // namespace dovetail
