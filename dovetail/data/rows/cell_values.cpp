#include "dovetail/data/rows/cell_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "dovetail/base/error.h"

namespace dovetail::data {

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string shown(std::string_view text) {
  constexpr size_t kLongest = 40;
  return "\"" + printable(text.substr(0, kLongest)) + (text.size() > kLongest ? "...\"" : "\"");
}

bool is_missing_word(std::string_view text) {
  constexpr std::array<std::string_view, 19> kWords = {
      "",     "NA",   "N/A",  "n/a", "NaN",      "nan",    "-nan",    "-NaN",    "null",    "NULL",
      "None", "<NA>", "#N/A", "#NA", "#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"};
  return text.size() <= 8 && std::ranges::find(kWords, text) != kWords.end();
}

bool is_truth(std::string_view text, double& value) {
  for (const std::string_view word : {"True", "true", "TRUE", "False", "false", "FALSE"}) {
    if (text != word) continue;
    value = word.size() == 4;
    return true;
  }
  return false;
}

std::string plain_number(std::string_view text, char decimal) {
  constexpr size_t kExactDigits = 15;
  if (text.size() <= kExactDigits) return {};
  const bool negative = text.front() == '-';
  if (negative || text.front() == '+') text.remove_prefix(1);
  const size_t point = std::min(text.find(decimal), text.size());
  std::string whole(text.substr(0, point)), fraction(text.substr(std::min(point + 1, text.size())));
  for (const std::string& part : {whole, fraction})
    if (part.find_first_not_of("0123456789") != std::string::npos) return {};
  whole.erase(0, whole.find_first_not_of('0'));
  fraction.erase(fraction.find_last_not_of('0') + 1);
  if (whole.size() + fraction.size() <= kExactDigits) return {};
  if (whole.empty()) whole = "0";
  return fmt::format("{}{}{}{}", negative ? "-" : "", whole, fraction.empty() ? "" : ".", fraction);
}

bool is_number(std::string_view text, char decimal, double& value) {
  text = without_blanks(text);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  if (text.empty()) return false;
  std::string pointed;
  if (decimal != '.') {
    if (text.find('.') != std::string_view::npos) return false;
    const size_t at = text.find(decimal);
    if (at != std::string_view::npos) {
      pointed = text;
      pointed[at] = '.';
      text = pointed;
    }
  }
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ptr != text.data() + text.size()) return false;
  if (result.ec == std::errc::result_out_of_range)
    value = std::strtod(std::string(text).c_str(), nullptr);
  return true;
}

Parsed number_of(const Cell& cell, char decimal, double& number, std::string& reason) {
  switch (cell.kind) {
    case Cell::Kind::kMissing:
      return Parsed::kMissing;
    case Cell::Kind::kInteger:
    case Cell::Kind::kBoolean:
      number = static_cast<double>(cell.integer);
      return Parsed::kThere;
    case Cell::Kind::kReal:
      number = cell.real;
      if (std::isnan(number)) return Parsed::kMissing;
      break;
    case Cell::Kind::kText:
      if (is_missing_word(without_blanks(*cell.text))) return Parsed::kMissing;
      if (!is_number(*cell.text, decimal, number) &&
          !is_truth(without_blanks(*cell.text), number)) {
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

bool is_whole(double number, int64_t& integer) {
  if (!(std::abs(number) < kExactIntegers) || number != std::trunc(number)) return false;
  integer = static_cast<int64_t>(number);
  return true;
}

bool is_whole(std::string_view text, char decimal, int64_t& integer) {
  const size_t point = text.find(decimal);
  if (point == std::string_view::npos || point + 1 == text.size()) return false;
  if (text.find_first_not_of('0', point + 1) != std::string_view::npos) return false;
  return parse_number(text.substr(0, point), integer) &&
         std::abs(static_cast<double>(integer)) < kExactIntegers;
}

bool fits_float32(double number, std::string& reason) {
  if (!(std::abs(number) > std::numeric_limits<float>::max())) return true;
  reason = fmt::format("{} is beyond float32", number);
  return false;
}

bool text_of(const Cell& cell, std::array<char, 24>& buffer, std::string_view& text,
             std::string& reason) {
  int64_t integer = cell.integer;
  if (cell.kind == Cell::Kind::kInteger ||
      (cell.kind == Cell::Kind::kReal && is_whole(cell.real, integer))) {
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), integer).ptr;
    text = std::string_view(buffer.data(), static_cast<size_t>(end - buffer.data()));
    return true;
  }
  if (cell.kind == Cell::Kind::kBoolean) {
    text = boolean_text(cell.integer != 0);
    return true;
  }
  if (cell.kind == Cell::Kind::kText) {
    text = *cell.text;
    return true;
  }
  reason =
      cell.kind == Cell::Kind::kReal
          ? fmt::format("the float {} is no id; write the column as integers or strings", cell.real)
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

}  // namespace dovetail::data
