#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/data/files/utf8.h"
#include "dovetail/data/matrix/matrix_part.h"
#include "dovetail/data/rows/cell_values.h"

namespace dovetail::data {
namespace {

constexpr size_t kBadPlaces = 5;

/// Returns one text for each number, whatever its type: "1" for 1 and 1.0.
std::string class_of_number(double value) {
  if (std::trunc(value) == value && std::abs(value) <= kExactIntegers)
    return std::to_string(static_cast<int64_t>(value));
  return fmt::format("{}", value);
}

/// Returns advice for a number with a comma where a point is expected.
std::string comma_advice(std::string_view word) {
  double value = 0;
  if (!is_number(word, ',', value)) return {};
  const size_t comma = word.find(',');
  const bool thousands =
      word.size() == comma + 4 && comma > 0 && comma <= 4 && word[comma - 1] != '-';
  return thousands
             ? fmt::format(
                   "; --decimal , reads it as {}. If the comma separates thousands, take it out",
                   value)
             : "; for a decimal comma give --decimal ,";
}

/// Returns true for a text that begins with a date of ISO 8601: 2020-01-31.
bool is_date(std::string_view word) {
  constexpr std::string_view kPattern = "0000-00-00";
  if (word.size() < kPattern.size()) return false;
  for (size_t i = 0; i < kPattern.size(); ++i)
    if (kPattern[i] == '-' ? word[i] != '-'
                           : std::isdigit(static_cast<unsigned char>(word[i])) == 0)
      return false;
  return true;
}

}  // namespace

std::string class_of_digits(std::string_view text, char decimal) {
  text = without_blanks(text);
  if (std::string digits = plain_number(text, decimal); !digits.empty()) return digits;
  double value = 0;
  return is_number(text, decimal, value) ? class_of_number(value) : std::string(text);
}

std::string numbered_column(size_t column) { return fmt::format("c{}", column); }

void RowTaker::begin(const char* place, int64_t number) {
  place_ = place;
  number_ = number;
  column_ = 0;
  row_begin_ = part_.values.size();
  target_begin_ = part_.target.size();
  keep_ = has_target_ = true;
}

void RowTaker::add(double value) {
  if (std::isnan(value)) return add_bad("no value (nan)");
  if (!std::isfinite(value)) return add_bad(fmt::format("{} is not finite", value));
  if (is_target()) {
    if (options_.target_kind == TargetKind::kClass) return add_class(class_of_number(value));
    part_.target.push_back(value);
    ++column_;
    return;
  }
  if (std::string reason; options_.type == MatrixType::kFloat32 && !fits_float32(value, reason))
    return add_bad(reason);
  part_.values.push_back(value);
  ++column_;
}

void RowTaker::add_integer(int64_t value) {
  if (is_target() && options_.target_kind == TargetKind::kClass)
    return add_class(std::to_string(value));
  const auto rounded = static_cast<double>(value);
  if (std::abs(rounded) >= kExactIntegers) note_wide(std::to_string(value), rounded);
  add(rounded);
}

void RowTaker::add_boolean(bool value) {
  if (is_target() && options_.target_kind == TargetKind::kClass)
    return add_string(boolean_text(value));
  add_integer(value ? 1 : 0);
}

void RowTaker::add_text(std::string_view text) {
  const std::string_view word = without_blanks(text);
  if (is_missing_word(word))
    return add_bad(word.empty() ? "no value" : fmt::format("no value ({})", word));
  if (is_target() && options_.target_kind == TargetKind::kClass) {
    part_.class_kind = MatrixPart::ClassKind::kFields;
    return add_class(std::string(text));
  }
  double value = 0;
  if (is_number(word, options_.decimal, value)) {
    if (std::string digits = plain_number(word, options_.decimal); !digits.empty())
      note_wide(std::move(digits), value);
    return add(value);
  }
  if (is_truth(word, value)) return add(value);
  add_bad(shown(text) + " is not a number" +
          (is_date(word)             ? "; write dates as numbers, such as seconds"
           : options_.decimal == '.' ? comma_advice(word)
                                     : std::string()));
}

void RowTaker::add_string(std::string_view text) {
  if (is_target() && options_.target_kind == TargetKind::kClass) {
    part_.class_kind = MatrixPart::ClassKind::kStrings;
    return add_class(std::string(text));
  }
  add_text(text);
}

void RowTaker::add_digits(std::string_view digits) {
  if (is_target() && options_.target_kind == TargetKind::kClass)
    return add_class(class_of_digits(digits, '.'));
  add_text(digits);
}

void RowTaker::note_wide(std::string digits, double value) {
  if (part_.wide.empty()) part_.wide.resize(columns_.read.size());
  WideNumbers& wide = part_.wide[column_];
  if (!wide.last.empty() && wide.last != digits) {
    ++wide.differ;
    wide.merged += wide.last_value == value;
  }
  wide.last = std::move(digits);
  wide.last_value = value;
}

void RowTaker::add_class(std::string name) {
  if (!is_valid_utf8(name)) return add_bad(shown(name) + " is not UTF-8");
  const auto [at, fresh] = class_index_.emplace(std::move(name), part_.classes.size());
  if (fresh) part_.classes.push_back(at->first);
  part_.target.push_back(static_cast<double>(at->second));
  ++column_;
}

void RowTaker::add_bad(const std::string& reason) {
  const size_t column = columns_.read.at(column_);
  const bool target = is_target();
  const auto message = [&] {
    return fmt::format("{} {}, column {} (`{}`): {}", place_, shown_number(), column,
                       printable(columns_.names[column]), reason);
  };
  if (options_.bad_values == BadValues::kError)
    throw UserError(
        message(),
        target ? "--bad-values skip leaves such rows out"
               : fmt::format("--bad-values zero puts 0 in such places, --bad-values skip leaves "
                             "such rows out{}",
                             options_.columns.empty()
                                 ? fmt::format(", --drop-columns {} leaves the column out", column)
                                 : ""),
        path_.string());
  ++part_.num_bad;
  if (part_.first_bad.size() < kBadPlaces) part_.first_bad.push_back(message());
  if (options_.bad_values == BadValues::kSkip) keep_ = false;
  // Targets are never replaced by zero.
  if (target) has_target_ = false;
  (target ? part_.target : part_.values).push_back(0);
  ++column_;
}

void RowTaker::end() {
  DOVETAIL_CHECK(column_ == columns_.read.size(), "{} of {} columns", column_,
                 columns_.read.size());
  if (!keep_ || !has_target_) {
    part_.values.resize(row_begin_);
    part_.target.resize(target_begin_);
    part_.left_out.push_back(part_.rows);
  }
  ++part_.rows;
}

void RowTaker::end_bad(const std::string& reason) {
  const std::string message = fmt::format("{} {}: {}", place_, shown_number(), reason);
  if (options_.bad_values != BadValues::kSkip)
    throw UserError(message, "--bad-values skip leaves such rows out", path_.string());
  ++part_.num_bad;
  if (part_.first_bad.size() < kBadPlaces) part_.first_bad.push_back(message);
  part_.values.resize(row_begin_);
  part_.target.resize(target_begin_);
  part_.left_out.push_back(part_.rows);
  ++part_.rows;
}

}  // namespace dovetail::data
