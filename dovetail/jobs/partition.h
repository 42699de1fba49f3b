#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace dovetail::jobs {

/// Cost model of a device (CPU threads, a GPU, or a whole node): s rows take start_s + row_s * s
/// seconds if s > 0, and 0 seconds if s = 0.
struct DeviceCost {
  double start_s = 0;  ///< fixed seconds, including the transfer of the result (partial)
  double row_s = 0;    ///< seconds per row, including its transfer to the device; above 0
  /// Maximum number of rows that fit into its memory.
  int64_t max_rows = std::numeric_limits<int64_t>::max();
  int64_t min_rows = 0;  ///< minimum number of rows that it gets; a multiple of the grain
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
/// grain has `grain` rows.
///
/// If rows could be cut anywhere, all devices would finish at time T = (N + sum a/b) / sum 1/b.
/// Here N = `rows`, a = start_s and b = row_s. The sums cover the devices whose share (T - a) / b
/// is positive. Shares above max_rows are cut to max_rows, and the remainder is shared again.
/// Shares are then rounded down to whole grains. Each remaining grain goes to the device that would
/// finish it earliest. No other division into whole grains is faster. For two devices with a = 0,
/// the shares are in the ratio of their speeds (for CPU and GPU: acceleration ratio).
///
/// Each device first gets its min_rows. The remaining rows are divided as above.
///
/// Throws UserError if the devices' max_rows sum to less than `rows`. Throws InternalError for any
/// of these:
///   - costs that are not finite, a row_s that is not positive, a negative start_s,
///   - a grain below 1,
///   - min_rows that are not whole grains, above max_rows, or together above `rows`.
Partition partition(int64_t rows, std::span<const DeviceCost> devices, int64_t grain);

/// Returns the predicted seconds until all devices are done. `shares` holds the number of grains of
/// each device. A grain has `grain` rows.
double seconds_of(std::span<const int64_t> shares, std::span<const DeviceCost> devices,
                  int64_t grain);

/// Returns the number of grains of each device. `before` holds the current numbers. Keeps and
/// returns `before` if it covers all rows and takes at most (1 + hysteresis) times as long as the
/// result of `partition`. Otherwise returns the result of `partition`, in grains.
std::vector<int64_t> move_shares(std::span<const int64_t> before, int64_t rows,
                                 std::span<const DeviceCost> devices, int64_t grain,
                                 double hysteresis);

}  // namespace dovetail::jobs
