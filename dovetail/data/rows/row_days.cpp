#include "dovetail/data/rows/row_days.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/data/rows/row_loader.h"

namespace dovetail::data {
namespace {

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

bool comes_before(std::string_view a, std::string_view b) {
  const auto first = whole_number(a), second = whole_number(b);
  return first && second ? *first < *second : a < b;
}

DayOrder::DayOrder(uint64_t seed, std::vector<RowDay> days, int64_t window, int64_t batch)
    : seed_(seed), days_(std::move(days)), window_(window), batch_(batch) {
  DOVETAIL_CHECK(batch > 0, "batch {}", batch);
  for (const RowDay& day : days_)
    first_steps_.push_back(first_steps_.back() + (day.num_rows + batch - 1) / batch);
}

int64_t DayOrder::day_of(int64_t step) const {
  DOVETAIL_CHECK(step >= 0 && step < num_steps(), "step {} of {}", step, num_steps());
  return std::upper_bound(first_steps_.begin(), first_steps_.end(), step) - first_steps_.begin() -
         1;
}

int64_t DayOrder::num_rows(int64_t step) const {
  const int64_t day = day_of(step);
  return std::min(batch_,
                  days_[static_cast<size_t>(day)].num_rows - (step - first_step(day)) * batch_);
}

std::pair<int64_t, int64_t> DayOrder::windows(int64_t step) const {
  const int64_t number = day_of(step), position = (step - first_step(number)) * batch_;
  const RowDay& day = days_[static_cast<size_t>(number)];
  const int64_t window = window_ == 0 ? day.num_rows : window_,
                last = position + num_rows(step) - 1;
  return {day.first_row + position / window * window,
          day.first_row + std::min((last / window + 1) * window, day.num_rows)};
}

int64_t DayOrder::row(int64_t step, int64_t i) const {
  const int64_t number = day_of(step), position = (step - first_step(number)) * batch_ + i;
  const RowDay& day = days_[static_cast<size_t>(number)];
  return day.first_row + RowOrder(seed_, day.num_rows, window_).row(number, position);
}

}  // namespace dovetail::data
