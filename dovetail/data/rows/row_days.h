#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dovetail::data {

/// Consecutive rows of one day.
struct RowDay {
  std::string name;
  int64_t first_row = 0, num_rows = 0;  ///< index and count among the kept rows
};

/// Returns true if day `a` is before day `b`. Compares two whole numbers by value, and other texts
/// byte by byte.
bool comes_before(std::string_view a, std::string_view b);

/// Rows of each step of a run that goes day by day. A step has `batch` rows of one day; the last
/// step of a day has the remaining rows. Rows are shuffled within windows of `window` consecutive
/// rows of a day. The order depends on the arguments alone. Appending days does not change the
/// steps of earlier days.
class DayOrder {
 public:
  /// `window` 0: all rows of a day are one window.
  DayOrder(uint64_t seed, std::vector<RowDay> days, int64_t window, int64_t batch);

  const std::vector<RowDay>& days() const { return days_; }
  int64_t num_steps() const { return first_steps_.back(); }
  /// Returns the day of a step, from 0.
  int64_t day_of(int64_t step) const;
  /// Returns the first step of a day.
  int64_t first_step(int64_t day) const { return first_steps_[static_cast<size_t>(day)]; }
  /// Returns the number of rows of a step.
  int64_t num_rows(int64_t step) const;
  /// Returns the range [first, last) of kept rows that the windows of a step cover.
  std::pair<int64_t, int64_t> windows(int64_t step) const;
  /// Returns row `i` of a step as an index among the kept rows.
  int64_t row(int64_t step, int64_t i) const;

 private:
  uint64_t seed_;
  std::vector<RowDay> days_;
  int64_t window_, batch_;
  std::vector<int64_t> first_steps_ = {0};  ///< first step of each day, then the number of steps
};

}  // namespace dovetail::data
