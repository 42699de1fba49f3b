#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace dovetail::jobs {

/// Linear cost model of a device: s rows take start_s + row_s * s seconds.
struct Speed {
  double start_s = 0, row_s = 0;
};

/// Measured times of a device in one task, and the Speed fitted to them. The slope row_s is the
/// median of the slopes between any two measurements (Theil 1950, Sen 1968). The start start_s is
/// the median of the residuals, seconds - row_s * rows. Up to 29 % of the times may be arbitrary
/// without moving the fit far. If all measurements have the same number of rows, start_s is 0. It
/// is also 0 if noise hides the effect of the rows. In these cases, row_s is the median time per
/// row of some measurements. They have at least half of the largest number of rows.
///
/// Stores the latest kKept measurements. If the latest kChanged measurements are all slower than
/// the fit by a factor above 1 + kFarOff, the machine counts as changed. If all are faster by a
/// factor above 1 + kFarOff, it counts as changed, too. After a change, all earlier measurements
/// are removed.
class SpeedHistory {
 public:
  static constexpr size_t kKept = 48, kChanged = 4;
  static constexpr double kFarOff = 0.25;

  /// Adds a measurement: the device took `seconds` for `rows` rows. Both must be above 0.
  void add(int64_t rows, double seconds);
  /// Returns the fitted speed, or nullopt without any measurement.
  std::optional<Speed> speed() const { return speed_; }
  /// Returns true if the measurements tell start_s and row_s apart.
  bool has_start() const { return has_start_; }
  size_t size() const { return times_.size(); }

  struct Time {
    double rows, seconds;
  };
  /// Returns the stored measurements, from oldest to newest. To restore this history, pass them to
  /// `add` of a new object in this order.
  const std::deque<Time>& times() const { return times_; }

 private:
  bool has_changed() const;
  Speed fit();

  std::deque<Time> times_;
  std::optional<Speed> speed_;
  bool has_start_ = false;
  /// Number of latest consecutive times that deviate from the fit in the same direction by more
  /// than kFarOff. Positive if they are slower than the fit, negative if they are faster.
  int off_ = 0;
};

}  // namespace dovetail::jobs
