#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace dovetail::jobs {

/// What a device needs for s rows: start_s + row_s * s seconds, and nothing at all for none. What
/// it costs to bring its partial to the sum belongs to start_s, what it costs to bring rows to it
/// to row_s.
struct DeviceCost {
  double start_s = 0;
  double row_s = 0;                                        ///< above 0
  int64_t max_rows = std::numeric_limits<int64_t>::max();  ///< what its memory holds
  int64_t min_rows = 0;  ///< that it gets in any case, in whole grains
};

struct Partition {
  std::vector<int64_t> rows;  ///< of each device: whole grains, but for one that has the last rows;
                              ///< 0: it is not used
  double seconds = 0;         ///< until the last one is done
};

/// The shares of `rows` rows with which the last device is done soonest. In rows that could be cut
/// anywhere, all devices end at T = (N + sum a/b) / sum 1/b with a = start_s and b = row_s, over
/// those whose share (T - a) / b is positive; shares above max_rows are max_rows, and the rest is
/// shared again. Grains that rounding down leaves go one by one to the device that is then done
/// first, which is optimal in whole grains. For two devices with a = 0 the shares are in the ratio
/// of speeds, the acceleration ratio of CPU and GPU.
///
/// With min_rows the rest is shared like that among devices that start with theirs.
///
/// Throws UserError when the memories together hold fewer rows; InternalError for costs that are
/// not finite, a row_s that is not positive, a negative start_s, a grain below 1, or min_rows that
/// are not whole grains, more than max_rows or together more than `rows`.
Partition partition(int64_t rows, std::span<const DeviceCost> devices, int64_t grain);

/// When the last device is done with its share, in grains.
double seconds_of(std::span<const int64_t> shares, std::span<const DeviceCost> devices,
                  int64_t grain);

/// The shares of `partition`, in grains; but those of `before`, also in grains, if they are of all
/// rows and it would not be done sooner than they by more than `hysteresis` times its seconds.
std::vector<int64_t> move_shares(std::span<const int64_t> before, int64_t rows,
                                 std::span<const DeviceCost> devices, int64_t grain,
                                 double hysteresis);

}  // namespace dovetail::jobs
