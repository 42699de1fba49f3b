#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/data/matrix/matrix.h"

/// Independent reader of delimited texts. It accepts only unambiguous texts and returns nullopt for
/// all others.
namespace dovetail::test {

using Table = std::vector<std::vector<double>>;

/// Reads up to six digits, optionally with a minus sign and up to six decimals.
inline std::optional<double> strict_number(std::string_view text) {
  const auto skip_digits = [&](size_t at) {
    size_t end = at;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    return end - at >= 1 && end - at <= 6 ? end : std::string_view::npos;
  };
  size_t at = skip_digits(text.starts_with('-') ? 1 : 0);
  if (at != std::string_view::npos && at < text.size())
    at = text[at] == '.' ? skip_digits(at + 1) : at;
  if (at != text.size()) return std::nullopt;
  return std::strtod(std::string(text).c_str(), nullptr);
}

inline std::vector<std::string_view> cut(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (size_t end = text.find(at); end != std::string_view::npos; end = text.find(at)) {
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.push_back(text);
  return parts;
}

/// Reads rows of numbers below the header "a,b,c". Each line ends with a line feed.
inline std::optional<Table> strict_table(std::string_view text, char delimiter = ',') {
  const std::string header = {'a', delimiter, 'b', delimiter, 'c', '\n'};
  if (!text.starts_with(header) || !text.ends_with('\n') || text.size() == header.size())
    return std::nullopt;
  Table table;
  for (const std::string_view line :
       cut(text.substr(header.size(), text.size() - header.size() - 1), '\n')) {
    std::vector<double>& row = table.emplace_back();
    for (const std::string_view field : cut(line, delimiter)) {
      const auto number = strict_number(field);
      if (!number) return std::nullopt;
      row.push_back(*number);
    }
    if (row.size() != 3) return std::nullopt;
  }
  return table;
}

/// Expects the invariants of a matrix's shape.
inline void expect_sound(const data::Matrix& matrix) {
  const auto columns = static_cast<int64_t>(matrix.columns.size());
  ASSERT_EQ(matrix.x.dim(), 2);
  ASSERT_GT(matrix.x.size(0), 0);
  ASSERT_EQ(matrix.x.size(1), columns);
  ASSERT_EQ(matrix.origin.numel(), columns);
  if (matrix.target.defined()) {
    ASSERT_EQ(matrix.target.numel(), matrix.x.size(0));
  }
}

/// Expects the values of a table, each rounded to float32 after its column's origin was subtracted.
inline void expect_values(const data::Matrix& matrix, const Table& table) {
  expect_sound(matrix);
  ASSERT_EQ(matrix.x.size(0), static_cast<int64_t>(table.size()));
  ASSERT_EQ(matrix.x.size(1), static_cast<int64_t>(table[0].size()));
  const float* x = matrix.x.const_data_ptr<float>();
  const double* origin = matrix.origin.const_data_ptr<double>();
  for (const auto& row : table)
    for (size_t c = 0; c < row.size(); ++c)
      ASSERT_EQ(*x++, static_cast<float>(row[c] - origin[c])) << "column " << c;
}

}  // namespace dovetail::test
