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

/// A cell is the value of one column in one row (Cell, row_decoder.h). This header has the rules by
/// which cells and texts become numbers, integers and the texts of ids. `decimal` is the mark
/// before the fraction of a number, '.' or ','. A function that returns false or kBad sets `reason`
/// to the end of an error message.

/// Bound of the integers that float64 holds without rounding: 2^53.
constexpr double kExactIntegers = 9007199254740992;

/// Result of reading a cell as a number: it has a number, has no value, or is not a number.
enum class Parsed { kThere, kMissing, kBad };

/// Returns a text in quotes for a message. Texts of more than 40 bytes are cut.
std::string shown(std::string_view text);

/// Returns the text without spaces and tabs at its ends.
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

/// Parses a number, including "inf" and "nan", into `value` and returns true. Spaces and tabs
/// around the number are allowed. Returns false for any other text.
bool is_number(std::string_view text, char decimal, double& value);

/// Parses True or False, also in lower or upper case, as pandas.read_csv does. Sets `value` to 1 or
/// 0 and returns true. Returns false for any other text.
bool is_truth(std::string_view text, double& value);

/// Returns a decimal number of more than 15 digits, which float64 may round, in one fixed form. The
/// form has no plus sign, no zeros at either end, and '.' before the fraction. So two texts of the
/// same number give the same result. Returns an empty string for numbers of fewer digits, numbers
/// with an exponent and any other text.
std::string plain_number(std::string_view text, char decimal);

/// Reads a finite number from a cell into `number` and returns kThere; a boolean counts as 1 or 0.
/// Returns kMissing for a cell without a value, for NaN and for a text for which is_missing_word is
/// true. Returns kBad for all else.
Parsed number_of(const Cell& cell, char decimal, double& number, std::string& reason);

/// Returns true if the number is in the range of float32 or is NaN.
bool fits_float32(double number, std::string& reason);

/// Converts a float that is a whole number of magnitude below 2^53 to `integer` and returns true.
/// No other integer rounds to this float. Returns false for any other float.
bool is_whole(double number, int64_t& integer);

/// Parses the text of a whole float: an integer, `decimal`, then one or more zeros. Example: "7.0".
/// Its magnitude must be below 2^53. Returns false for any other text, also for "7".
bool is_whole(std::string_view text, char decimal, int64_t& integer);

/// Returns true for a cell without a value: null, an empty text or NaN. An empty field in CSV may
/// be a NaN that pandas wrote.
inline bool is_missing(const Cell& cell) {
  return cell.kind == Cell::Kind::kMissing ||
         (cell.kind == Cell::Kind::kText && cell.text->empty()) ||
         (cell.kind == Cell::Kind::kReal && std::isnan(cell.real));
}

/// Returns the text of a boolean, as pandas writes it.
inline std::string_view boolean_text(bool value) { return value ? "True" : "False"; }

/// Sets `text` to the text that is hashed for the id in `cell`, and returns true. The cell must
/// have a value. The text depends on the kind of the value:
///
/// - text: the text itself
/// - boolean: True or False
/// - integer, or float that is a whole number: its decimal digits, which are written into `buffer`
///
/// Returns false for any other float and for a list.
bool text_of(const Cell& cell, std::array<char, 24>& buffer, std::string_view& text,
             std::string& reason);

/// Sets `cell` to one value of a Parquet column. `i` is the index of the value in `values`. (It is
/// not the row: a row may have a list of values.) Members that the kind of `cell` does not use keep
/// their old values.
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

/// Calls `visit` with a cell for each value of `cell`. The values of a list are its elements. If
/// `separator` is not 0, the values of a text are the parts between separators. Any other cell has
/// one value, itself. Returns false if `visit` returned false, which ends the loop.
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
