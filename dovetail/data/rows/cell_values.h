#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "dovetail/data/rows/row_decoder.h"

namespace dovetail {

/// Bound of the integers that float64 holds without rounding: 2^53.
constexpr double kExactIntegers = 9007199254740992;

/// What a cell holds, as numbers and texts. A reason is written where there is none.
enum class Parsed { kThere, kMissing, kBad };

/// A text in a message, cut where it is long.
std::string shown(std::string_view text);

std::string_view without_blanks(std::string_view text);

/// True for a text that means a missing number: nothing, or a word that pandas.read_csv takes so,
/// such as "NA", "nan", "null", "None", "<NA>" or "#N/A".
bool is_missing_word(std::string_view text);

/// Whether all of the text is a number.
template <class Number>
bool parse_number(std::string_view text, Number& number) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

/// Reads a number, "inf" among them, with `decimal` before its fraction and maybe blanks around it.
/// False for anything else.
bool is_number(std::string_view text, char decimal, double& value);

/// Reads True or False, as pandas.read_csv does: also in lower or upper case.
bool is_truth(std::string_view text, double& value);

/// The digits of a plain decimal number of more than 15 of them, which float64 may round: without a
/// plus sign and zeros at the ends, with '.' before the fraction. Empty for any other text.
std::string plain_number(std::string_view text, char decimal);

/// A finite number or truth; a NaN is a missing one, and so is a text of is_missing_word.
Parsed number_of(const Cell& cell, char decimal, double& number, std::string& reason);

/// Returns true if float32 holds the number or it is NaN; else writes the reason.
bool fits_float32(double number, std::string& reason);

/// Reads a float that is an integer below 2^53, so that no other integer rounds to it.
bool is_whole(double number, int64_t& integer);

/// Reads such a float from a text: an integer, `decimal` and zeros.
bool is_whole(std::string_view text, char decimal, int64_t& integer);

/// True for null, an empty text and a NaN, which pandas writes as an empty field of CSV.
inline bool is_missing(const Cell& cell) {
  return cell.kind == Cell::Kind::kMissing ||
         (cell.kind == Cell::Kind::kText && cell.text->empty()) ||
         (cell.kind == Cell::Kind::kReal && std::isnan(cell.real));
}

/// The text of a boolean, as pandas writes it.
inline std::string_view boolean_text(bool value) { return value ? "True" : "False"; }

/// The text that is hashed. Integers and whole floats are written into `buffer`, as integers.
bool text_of(const Cell& cell, std::array<char, 24>& buffer, std::string_view& text,
             std::string& reason);

/// Makes `cell` value i of a column of Parquet.
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

/// `visit(cell)` for each value of a cell until it returns false: of a list, of a text with
/// separators, or the one.
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

}  // namespace dovetail
