#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dovetail::data {

/// In a run with rows.day, each row belongs to a day, and the run reads the rows day by day. Kept
/// rows are the rows of all files, in file order, without those that are bad or have no label. All
/// row indices in this header count kept rows from 0.

/// One day: a range of consecutive kept rows.
struct RowDay {
  std::string name;                     ///< text in the column of days, such as "2013-01-31"
  int64_t first_row = 0, num_rows = 0;  ///< index of its first kept row, and number of kept rows
};

/// Returns true if the day named `a` is before the day named `b`. If both names are whole numbers,
/// compares them by value; otherwise, compares the names byte by byte.
bool comes_before(std::string_view a, std::string_view b);

/// Assignment of kept rows to the training steps of a run that reads the rows day by day. A step
/// has `batch` rows of one day; the last step of a day has the remaining rows.
///
/// Rows are shuffled within windows: each `window` consecutive rows of a day are one window, from
/// the day's first row on. The order depends only on the constructor's arguments. Appending days
/// does not change the steps of earlier days.
class DayOrder {
 public:
  /// `window` 0: all rows of a day are one window.
  DayOrder(uint64_t seed, std::vector<RowDay> days, int64_t window, int64_t batch);

  const std::vector<RowDay>& days() const { return days_; }
  int64_t num_steps() const { return first_steps_.back(); }
  /// Returns the index in `days()` of the day to which a step belongs.
  int64_t day_of(int64_t step) const;
  /// Returns the first step of a day, given by its index in `days()`.
  int64_t first_step(int64_t day) const { return first_steps_[static_cast<size_t>(day)]; }
  /// Returns the number of rows of a step.
  int64_t num_rows(int64_t step) const;
  /// Returns the range [first, last) of kept rows from which a step draws its rows. It is a whole
  /// number of windows.
  std::pair<int64_t, int64_t> windows(int64_t step) const;
  /// Returns row `i` of a step, from 0, as an index among the kept rows.
  int64_t row(int64_t step, int64_t i) const;

 private:
  uint64_t seed_;
  std::vector<RowDay> days_;
  int64_t window_, batch_;
  std::vector<int64_t> first_steps_ = {0};  ///< first step of each day; the last entry is num_steps
};

}  // namespace dovetail::data
