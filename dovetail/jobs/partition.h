#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace dovetail::jobs {

/// Cost model of a device: CPU threads, a GPU, or a whole node. It computes `slots` grains at a
/// time. So n > 0 grains of g rows take start_s + row_s * g * slots * ceil(n / slots) seconds.
struct DeviceCost {
  double start_s = 0;  ///< fixed seconds, including the transfer of the result (partial)
  /// Seconds per row with all slots busy, including its transfer to the device; above 0.
  double row_s = 0;
  /// Maximum number of rows that fit into its memory.
  int64_t max_rows = std::numeric_limits<int64_t>::max();
  int64_t min_rows = 0;  ///< minimum number of rows that it gets; a multiple of the grain
  int64_t slots = 1;     ///< grains that it computes at the same time; at least 1
};

/// Division of rows among devices. Rows are handed out in grains (blocks) of a fixed number of
/// rows.
struct Partition {
  /// Number of rows of each device (its share); 0 if it is not used. A multiple of the grain,
  /// except that the last grain may be shorter.
  std::vector<int64_t> rows;
  double seconds = 0;  ///< predicted seconds until all devices are done
};

/// Divides `rows` rows among `devices` so that all devices are done as early as possible. Each
/// grain has `grain` rows. Steps:
/// 1. Each device gets its min_rows. The remaining N rows are divided in the next steps.
/// 2. If rows could be cut anywhere, all devices would finish at time T = (N + sum a/b) / sum 1/b.
///    Here b is a device's row_s. a is the time at which it could start on the N rows: start_s +
///    row_s * min_rows. The device's share is (T - a) / b. The sums cover only the devices with a
///    positive share.
/// 3. Shares that would exceed max_rows are cut to max_rows. Step 2 is repeated for the remainder.
/// 4. Shares are rounded down to as many grains as the device has done at time T.
/// 5. Each remaining grain goes to the device that would finish it earliest.
///
/// No other division into whole grains is faster. For two devices with start_s = 0, one slot and no
/// limits, the shares are in the ratio of their speeds. For CPU and GPU, this is the acceleration
/// ratio.
///
/// Throws UserError if the devices' max_rows sum to less than `rows`. Throws InternalError for any
/// of these:
///   - costs that are not finite, a row_s that is not positive, a negative start_s,
///   - a grain or a number of slots below 1,
///   - min_rows that are not whole grains, above max_rows, or together above `rows`.
Partition partition(int64_t rows, std::span<const DeviceCost> devices, int64_t grain);

/// Returns the predicted seconds until all devices are done. `shares` holds the number of grains of
/// each device. A grain has `grain` rows.
double seconds_of(std::span<const int64_t> shares, std::span<const DeviceCost> devices,
                  int64_t grain);

/// Returns the number of grains of each device. `before` holds the current numbers. Returns
/// `before` if both conditions hold:
/// - it covers all rows,
/// - it takes at most (1 + hysteresis) times as long as the result of `partition`.
///
/// Otherwise returns the result of `partition`, in grains.
std::vector<int64_t> move_shares(std::span<const int64_t> before, int64_t rows,
                                 std::span<const DeviceCost> devices, int64_t grain,
                                 double hysteresis);

}  // namespace dovetail::jobs
