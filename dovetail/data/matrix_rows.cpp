#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/data/cell_values.h"
#include "dovetail/data/matrix_part.h"

namespace dovetail {
namespace {

constexpr size_t kBadPlaces = 5;
constexpr double kExactIntegers = 9007199254740992;  // 2^53
constexpr double kLargestFloat = std::numeric_limits<float>::max();

/// One text for each number, whatever its type: "1" for 1 and 1.0.
std::string class_of_number(double value) {
  if (std::trunc(value) == value && std::abs(value) <= kExactIntegers)
    return std::to_string(static_cast<int64_t>(value));
  return fmt::format("{}", value);
}

std::string class_of_text(std::string_view text, char decimal) {
  int64_t integer = 0;
  uint64_t large = 0;
  if (text.starts_with('+')) {
    if (parse_number(text.substr(1), large)) return std::to_string(large);
  } else {
    if (parse_number(text, integer)) return std::to_string(integer);
    if (parse_number(text, large)) return std::to_string(large);
  }
  double value = 0;
  return is_number(text, decimal, value) ? class_of_number(value) : std::string(text);
}

}  // namespace

std::string numbered_column(size_t column) { return fmt::format("c{}", column); }

void RowTaker::begin(const char* place, int64_t number) {
  place_ = place;
  number_ = number;
  column_ = 0;
  row_begin_ = part_.values.size();
  target_begin_ = part_.target.size();
  keep_ = true;
}

void RowTaker::add(double value) {
  if (std::isnan(value)) return add_bad("no value (nan)");
  if (is_target()) {
    if (options_.target_kind == TargetKind::kClass) return add_class(class_of_number(value));
    if (!std::isfinite(value)) return add_bad(fmt::format("{} is not finite", value));
    part_.target.push_back(value);
    ++column_;
    return;
  }
  if (!(std::abs(value) <= kLargestFloat))
    return add_bad(fmt::format("{} is {}", value, std::isfinite(value) ? "beyond float32" : "not finite"));
  part_.values.push_back(value);
  ++column_;
}

void RowTaker::add_integer(int64_t value) {
  if (is_target() && options_.target_kind == TargetKind::kClass) return add_class(std::to_string(value));
  const auto rounded = static_cast<double>(value);
  if (std::abs(rounded) >= kExactIntegers) note_wide(static_cast<long double>(value));
  add(rounded);
}

void RowTaker::add_text(std::string_view text) {
  const std::string_view word = without_blanks(text);
  if (is_missing_word(word)) return add_bad(word.empty() ? "no value" : fmt::format("no value ({})", word));
  if (is_target() && options_.target_kind == TargetKind::kClass)
    return add_class(class_of_text(word, options_.decimal));
  double value = 0;
  if (is_number(word, options_.decimal, value)) {
    int64_t integer = 0;
    uint64_t large = 0;
    if (std::abs(value) >= kExactIntegers) {
      if (parse_number(word, integer)) return add_integer(integer);
      if (parse_number(word, large)) note_wide(static_cast<long double>(large));
    }
    return add(value);
  }
  std::string reason = shown(text) + " is not a number";
  if (options_.decimal == '.' && is_number(word, ',', value)) reason += "; for a decimal comma give --decimal ,";
  add_bad(reason);
}

void RowTaker::note_wide(long double integer) {
  if (part_.wide.empty()) part_.wide.resize(columns_.read.size());
  WideIntegers& wide = part_.wide[column_];
  if (wide.last != 0 && wide.last != integer) {
    ++wide.differ;
    wide.merged += static_cast<double>(wide.last) == static_cast<double>(integer);
  }
  wide.last = integer;
}

void RowTaker::add_class(std::string name) {
  const auto [at, fresh] = class_index_.emplace(std::move(name), part_.classes.size());
  if (fresh) part_.classes.push_back(at->first);
  part_.target.push_back(static_cast<double>(at->second));
  ++column_;
}

void RowTaker::add_bad(const std::string& reason) {
  const size_t column = columns_.read.at(column_);
  const bool target = is_target();
  const auto message = [&] {
    return fmt::format("{} {}, column {} (`{}`): {}", place_, shown_number(), column, printable(columns_.names[column]),
                       reason);
  };
  if (options_.bad_values == BadValues::kError)
    throw UserError(message(),
                    target ? "--bad-values skip leaves such rows out"
                           : fmt::format("--bad-values zero puts 0 in such places, --bad-values skip leaves such rows "
                                         "out, --drop-columns {} leaves the column out",
                                         column),
                    path_.string());
  ++part_.num_bad;
  if (part_.first_bad.size() < kBadPlaces) part_.first_bad.push_back(message());
  keep_ = keep_ && options_.bad_values == BadValues::kZero;
  if (target) {
    options_.target_kind == TargetKind::kClass ? add_class("0") : add(0);
  } else {
    part_.values.push_back(0);
    ++column_;
  }
}

void RowTaker::end() {
  DOVETAIL_CHECK(column_ == columns_.read.size(), "{} of {} columns", column_, columns_.read.size());
  if (!keep_) {
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

}  // namespace dovetail
