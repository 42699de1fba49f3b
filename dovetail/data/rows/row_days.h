#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dovetail {

/// Rows of one day, which follow one another.
struct RowDay {
  std::string name;
  int64_t first_row = 0, num_rows = 0;  ///< of the kept rows
};

/// Whether day `a` comes before day `b`: whole numbers by value, other texts byte by byte.
bool comes_before(std::string_view a, std::string_view b);

/// Which rows each step of a run takes that goes day by day: those of a day in steps of `batch`,
/// the last one of what is left; shuffled among the `window` of the day that follow one another. A
/// function of its arguments alone; more days behind change nothing before them.
class DayOrder {
 public:
  /// window 0: all rows of a day are one window.
  DayOrder(uint64_t seed, std::vector<RowDay> days, int64_t window, int64_t batch);

  const std::vector<RowDay>& days() const { return days_; }
  int64_t num_steps() const { return first_steps_.back(); }
  /// The day of a step, from 0.
  int64_t day_of(int64_t step) const;
  /// The step that a day begins with.
  int64_t first_step(int64_t day) const { return first_steps_[static_cast<size_t>(day)]; }
  /// The rows of a step.
  int64_t num_rows(int64_t step) const;
  /// The kept rows [first, last) that the windows of a step hold.
  std::pair<int64_t, int64_t> windows(int64_t step) const;
  /// The kept row that is number `i` of a step.
  int64_t row(int64_t step, int64_t i) const;

 private:
  uint64_t seed_;
  std::vector<RowDay> days_;
  int64_t window_, batch_;
  std::vector<int64_t> first_steps_ = {0};  ///< of each day, and one past the last
};

}  // namespace dovetail
