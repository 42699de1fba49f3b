#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "dovetail/data/rows/row_decoder.h"

namespace dovetail::data {

/// Bound of the integers that float64 holds without rounding: 2^53.
constexpr double kExactIntegers = 9007199254740992;

/// Result of reading a cell as a number or a text. kBad comes with a reason.
enum class Parsed { kThere, kMissing, kBad };

/// Returns a text in quotes for a message. Long texts are cut.
std::string shown(std::string_view text);

std::string_view without_blanks(std::string_view text);

/// Returns true if the text means a missing number: an empty text, or a word that pandas.read_csv
/// treats as missing. Examples are "NA", "nan", "null", "None", "<NA>" and "#N/A".
bool is_missing_word(std::string_view text);

/// Parses `text` into `number`. Returns true if the whole text is a number.
template <class Number>
bool parse_number(std::string_view text, Number& number) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

/// Parses a number, including "inf", with `decimal` as its decimal mark. Blanks around the number
/// are allowed. Returns false for anything else.
bool is_number(std::string_view text, char decimal, double& value);

/// Parses True or False, also in lower or upper case, as pandas.read_csv does.
bool is_truth(std::string_view text, double& value);

/// Returns the digits of a plain decimal number if it has more than 15 digits, which float64 may
/// round. Omits a plus sign and zeros at either end, and writes '.' before the fraction. Returns an
/// empty string for any other text.
std::string plain_number(std::string_view text, char decimal);

/// Reads a finite number or a boolean. A NaN and a text of is_missing_word are missing numbers.
Parsed number_of(const Cell& cell, char decimal, double& number, std::string& reason);

/// Returns true if the number is in the range of float32 or is NaN. Otherwise writes the reason.
bool fits_float32(double number, std::string& reason);

/// Converts a float that is an integer of magnitude below 2^53. No other integer rounds to this
/// float. Returns false for any other float.
bool is_whole(double number, int64_t& integer);

/// Parses such a float from a text: an integer, `decimal` and zeros.
bool is_whole(std::string_view text, char decimal, int64_t& integer);

/// Returns true for null, an empty text and NaN. pandas writes NaN as an empty field of CSV.
inline bool is_missing(const Cell& cell) {
  return cell.kind == Cell::Kind::kMissing ||
         (cell.kind == Cell::Kind::kText && cell.text->empty()) ||
         (cell.kind == Cell::Kind::kReal && std::isnan(cell.real));
}

/// Returns the text of a boolean, as pandas writes it.
inline std::string_view boolean_text(bool value) { return value ? "True" : "False"; }

/// Sets `text` to the text that is hashed. Writes integers, and whole floats as integers, into
/// `buffer`. Returns false and writes the reason if there is no text.
bool text_of(const Cell& cell, std::array<char, 24>& buffer, std::string_view& text,
             std::string& reason);

/// Sets `cell` to value `i` of a Parquet column.
inline void set_value(const ColumnValues& values, int64_t i, Cell& cell) {
  const auto at = static_cast<size_t>(i);
  if (values.value_present[at] == 0) {
    cell.kind = Cell::Kind::kMissing;
  } else if (values.kind == ColumnValues::Kind::kText) {
    const auto code = static_cast<size_t>(values.codes[at]);
    cell.kind = Cell::Kind::kText;
    cell.text = &values.words[code];
    cell.key = &values.keys[code];
  } else if (values.kind == ColumnValues::Kind::kInteger) {
    cell.kind = values.booleans ? Cell::Kind::kBoolean : Cell::Kind::kInteger;
    cell.integer = values.integers[at];
  } else {
    cell.kind = Cell::Kind::kReal;
    cell.real = values.reals[at];
  }
}

/// Calls `visit(cell)` for each value of a cell until it returns false. A list and a text with
/// separators have several values; any other cell has one.
template <class Visit>
bool for_each_value(const Cell& cell, char separator, Visit&& visit) {
  if (cell.kind == Cell::Kind::kList) {
    Cell value;
    for (int64_t i = cell.begin; i < cell.end; ++i) {
      set_value(*cell.list, i, value);
      if (!visit(value)) return false;
    }
    return true;
  }
  if (cell.kind != Cell::Kind::kText || separator == 0) return visit(cell);
  for (size_t at = 0; at <= cell.text->size();) {
    const size_t end = std::min(cell.text->find(separator, at), cell.text->size());
    const std::string_view text = cell.text->substr(at, end - at);
    Cell part;
    part.text = &text;
    part.kind = text.empty() ? Cell::Kind::kMissing : Cell::Kind::kText;
    if (!visit(part)) return false;
    at = end + 1;
  }
  return true;
}

}  // namespace dovetail::data
