#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace dovetail::jobs {

/// Linear cost model: s rows take start_s + row_s * s seconds.
struct Speed {
  double start_s = 0, row_s = 0;
};

/// Speed of a device in a task, fitted to measured times. The slope row_s is the median of the
/// slopes between any two times (Theil 1950, Sen 1968). The start start_s is the median of the
/// residuals. Up to 29 % of the times may be arbitrary without moving the fit far. If all shards
/// have one size, start_s is 0, so only ratios of speeds are then known.
///
/// Keeps the latest kKept times. A deviation by more than kFarOff of the latest kChanged times, all
/// in one direction, shows that the machine has changed. All earlier times are then forgotten.
class SpeedHistory {
 public:
  static constexpr size_t kKept = 48, kChanged = 4;
  static constexpr double kFarOff = 0.25;

  /// Adds a measured time; `rows` and `seconds` must be above 0.
  void add(int64_t rows, double seconds);
  /// Returns the fitted speed, or nullopt before the first time.
  std::optional<Speed> speed() const { return speed_; }
  size_t size() const { return times_.size(); }

  struct Time {
    double rows, seconds;
  };
  /// Returns the kept times, the latest last. Passing them all to `add` of a new object restores
  /// this history.
  const std::deque<Time>& times() const { return times_; }

 private:
  bool has_changed() const;
  Speed fit() const;

  std::deque<Time> times_;
  std::optional<Speed> speed_;
  /// Number of latest consecutive times that were far slower (positive) or far faster (negative).
  int off_ = 0;
};

}  // namespace dovetail::jobs
