#include "dovetail/data/cell_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "dovetail/base/error.h"

namespace dovetail {

std::string shown(std::string_view text) {
  constexpr size_t kLongest = 40;
  return "\"" + printable(text.substr(0, kLongest)) + (text.size() > kLongest ? "...\"" : "\"");
}

Parsed number_of(const Cell& cell, double& number, std::string& reason) {
  switch (cell.kind) {
    case Cell::Kind::kMissing:
      return Parsed::kMissing;
    case Cell::Kind::kInteger:
      number = static_cast<double>(cell.integer);
      return Parsed::kThere;
    case Cell::Kind::kReal:
      number = cell.real;
      if (std::isnan(number)) return Parsed::kMissing;
      break;
    case Cell::Kind::kText:
      if (!parse_number(*cell.text, number)) {
        reason = shown(*cell.text) + " is not a number";
        return Parsed::kBad;
      }
      break;
    case Cell::Kind::kList:
      reason = "a list, where one number is wanted";
      return Parsed::kBad;
  }
  if (std::isfinite(number)) return Parsed::kThere;
  reason = fmt::format("{} is not finite", number);
  return Parsed::kBad;
}

bool text_of(const Cell& cell, std::array<char, 24>& buffer, std::string_view& text, std::string& reason) {
  if (cell.kind == Cell::Kind::kInteger) {
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), cell.integer).ptr;
    text = std::string_view(buffer.data(), static_cast<size_t>(end - buffer.data()));
    return true;
  }
  if (cell.kind == Cell::Kind::kText) {
    text = *cell.text;
    return true;
  }
  reason = cell.kind == Cell::Kind::kReal ? "a float is no id; write the column as integers or strings"
                                          : "a list, where one id is wanted";
  return false;
}

void set_row_cell(const ColumnValues& values, int64_t row, Cell& cell) {
  if (!values.is_list) {
    set_value(values, row, cell);
    return;
  }
  const auto at = static_cast<size_t>(row);
  cell.kind = values.list_present[at] == 0 ? Cell::Kind::kMissing : Cell::Kind::kList;
  cell.list = &values;
  cell.begin = values.list_begins[at];
  cell.end = values.list_begins[at + 1];
}

}  // namespace dovetail
