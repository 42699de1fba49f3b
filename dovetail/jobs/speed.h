#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace dovetail::jobs {

/// t(s) = start_s + row_s * s.
struct Speed {
  double start_s = 0, row_s = 0;
};

/// How fast a device runs a task, out of the times that were measured: the median of the slopes
/// between any two of them (Theil 1950, Sen 1968) and the median of what is left. Up to 29 % of the
/// times may be anything without moving it far. Of shards of one size the start is 0: only a ratio
/// of speeds can then be known.
///
/// Keeps the latest kKept times. When the latest kChanged of them are all slower, or all faster,
/// than predicted by more than a quarter, the machine has changed: earlier times are forgotten.
class SpeedHistory {
 public:
  static constexpr size_t kKept = 48, kChanged = 4;
  static constexpr double kFarOff = 0.25;

  /// `rows` and `seconds` above 0.
  void add(int64_t rows, double seconds);
  /// None before the first time.
  std::optional<Speed> speed() const { return speed_; }
  size_t size() const { return times_.size(); }

  struct Time {
    double rows, seconds;
  };
  /// What is kept, the latest last: `add` of all makes this history again.
  const std::deque<Time>& times() const { return times_; }

 private:
  bool has_changed() const;
  Speed fit() const;

  std::deque<Time> times_;
  std::optional<Speed> speed_;
  int off_ = 0;  ///< latest times in a row that were far slower (above 0) or faster (below 0)
};

}  // namespace dovetail::jobs
