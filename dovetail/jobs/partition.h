#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace dovetail::jobs {

/// Cost model of a device: s rows take start_s + row_s * s seconds, and no rows take 0 seconds. The
/// transfer of its partial to the sum belongs to start_s. The transfer of rows to the device
/// belongs to row_s.
struct DeviceCost {
  double start_s = 0;
  double row_s = 0;                                        ///< above 0
  int64_t max_rows = std::numeric_limits<int64_t>::max();  ///< capacity of its memory
  int64_t min_rows = 0;  ///< minimum rows that it gets, in whole grains
};

struct Partition {
  /// Rows of each device; 0 if it is not used. Multiples of the grain, except for the device with
  /// the last rows.
  std::vector<int64_t> rows;
  double seconds = 0;  ///< time until the last device is done
};

/// Returns the shares of `rows` rows with which the last device is done earliest. If rows could be
/// cut anywhere, all devices would end at T = (N + sum a/b) / sum 1/b. Here N = `rows`, a = start_s
/// and b = row_s. The sums cover the devices whose share (T - a) / b is positive. Shares above
/// max_rows are cut to max_rows, and the remainder is shared again. Shares are then rounded down to
/// whole grains. The remaining grains go one by one to the device that is then done first. This is
/// optimal in whole grains. For two devices with a = 0 the shares are in the ratio of speeds, the
/// acceleration ratio of CPU and GPU.
///
/// If min_rows are given, devices start with these rows, and the others are shared in the same way.
///
/// Throws UserError if the memories together hold fewer rows. Throws InternalError for any of
/// these:
///   - costs that are not finite, a row_s that is not positive, a negative start_s,
///   - a grain below 1,
///   - min_rows that are not whole grains, above max_rows, or together above `rows`.
Partition partition(int64_t rows, std::span<const DeviceCost> devices, int64_t grain);

/// Returns the time until the last device is done with its share. Shares are in grains.
double seconds_of(std::span<const int64_t> shares, std::span<const DeviceCost> devices,
                  int64_t grain);

/// Returns the shares of `partition`, in grains, or `before`, also in grains. Keeps `before` if it
/// covers all rows and `partition` saves at most `hysteresis` times its own time.
std::vector<int64_t> move_shares(std::span<const int64_t> before, int64_t rows,
                                 std::span<const DeviceCost> devices, int64_t grain,
                                 double hysteresis);

}  // namespace dovetail::jobs
