#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/jobs/speed.h"

namespace dovetail::jobs {

/// Method that divides the shards of an iteration among devices.
enum class SharePolicy {
  kStatic,  ///< in proportion to SchedulerDevice::ratio
  /// Shares with which all devices finish together by their measured speeds (jobs/partition.h). A
  /// share may be 0.
  kAffine,
  /// Shares as for kAffine. A device that is done also takes single shards of the device that would
  /// finish last.
  kStealing,
};
/// Parses "static", "affine" or "stealing". Throws UserError for another name.
SharePolicy parse_share_policy(std::string_view name);

struct SchedulerDevice {
  std::string name;   ///< name in messages
  int64_t slots = 1;  ///< leases that it computes at a time: its threads or streams
  double ratio = 1;   ///< kStatic: weight of its share, relative to the other devices
  int64_t max_rows = std::numeric_limits<int64_t>::max();  ///< capacity of its memory
  SpeedHistory history = {};  ///< rows and seconds of the leases of one slot
};

struct SchedulerOptions {
  SharePolicy policy = SharePolicy::kStealing;
  /// A lease expires after lease_factor times its expected time, but not before min_lease_s. It
  /// expires after first_lease_s while the speed of the device is unknown. A device is left out if
  /// each of its slots has been silent for first_lease_s after its lease expired.
  double lease_factor = 4, min_lease_s = 0.25, first_lease_s = 30;
  /// Leaves a device out after this many consecutive failed or expired leases without a delivery
  /// between them.
  int64_t max_misses = 3;
  /// Gives an iteration up after this many exceptions on one shard.
  int64_t max_attempts = 3;
  /// Computes one shard in this many on two devices and compares the results. 0: none.
  int64_t verify_every = 0;
  /// Keeps the shares while moving them would gain less than this fraction of the time.
  double hysteresis = 0.02;
};

/// Shards [begin, begin + count) of an iteration, assigned to one slot of a device.
struct Lease {
  int64_t id = 0, iteration = 0;
  size_t device = 0;
  int64_t slot = 0, begin = 0, count = 0;
  double deadline_s = 0;
};

/// Thrown if no device is left to compute with, or if two disagree and no third one can decide. The
/// message names each with its reason.
class DevicesLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Decides which device computes which shard next, in the runtime and in the simulator. It has no
/// threads, no clock and no data. The caller passes the time in seconds, which never goes back, and
/// makes one call at a time.
///
/// `begin` starts an iteration with its shards. Each free slot calls `next`. It then delivers its
/// lease shard by shard, or fails the lease. A shard is open, leased or done. Exactly one delivery
/// of it counts, and `take_counted` returns which one. Later deliveries are dropped. The caller
/// must call `expire` at the time that the previous call returned. Slots without a lease ask again
/// after each delivery, failure and `expire`.
///
/// Each device has its own share, a range of shards in the order of the devices. From one iteration
/// to the next, only boundaries move. Shards of a failed, abandoned or expired lease are open to
/// all devices and are handed out first. They return to a device that failed them only if no other
/// device is left. While a speed is unknown, shares are equal. Devices that are done then take
/// shards from the others, under kAffine too.
///
/// A lease is as small as its start time permits: start_s is at most kStartPart of its time. Under
/// kStealing, a lease never exceeds kBigPart (nine tenths) of the remaining share per slot. So the
/// last tenth goes out in small pieces.
///
/// Any call may throw DevicesLost.
class Scheduler {
 public:
  /// Takes at least one device. Throws UserError if verify_every is set and there is no second
  /// device.
  explicit Scheduler(std::vector<SchedulerDevice> devices, const SchedulerOptions& options = {});
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;

  /// Begins an iteration over shards with these numbers of rows. All have one size, except that the
  /// last may be smaller. Later deliveries for the previous iteration are dropped.
  void begin(const std::vector<int64_t>& shard_rows, double now_s);

  /// Returns the next lease for the slot, or nullopt if there is none. Gives up a lease that the
  /// slot still holds.
  std::optional<Lease> next(size_t device, int64_t slot, double now_s);

  /// Records that a shard of the lease has been computed. `digest` is a hash of all bits of the
  /// result, which is compared if the shard is verified.
  void deliver(const Lease& lease, int64_t shard, double now_s, uint64_t digest = 0);

  /// Records that computing `shard` threw, and ends the lease. Returns false once the shard was
  /// tried max_attempts times. The caller should then end the job with the exception.
  bool fail(const Lease& lease, int64_t shard, const std::string& reason);

  /// Opens the shards of expired leases to all devices. Returns the time at which to call it next.
  double expire(double now_s);

  /// Result that counts for a shard, and the device that computed it. `take_counted` returns the
  /// results since its previous call, one per shard.
  struct Counted {
    int64_t shard;
    size_t device;
  };
  std::vector<Counted> take_counted();
  bool is_verified(int64_t shard) const;
  bool done() const;

  /// Leaves a device out from this call on. The first reason is kept.
  void leave_out(size_t device, const std::string& reason);
  const std::optional<std::string>& left_out(size_t device) const;

  /// Returns the number of shards of each device at the beginning of the iteration.
  std::vector<int64_t> shares() const;
  /// Returns the measured times of the device, of all previous iterations.
  const SpeedHistory& history(size_t device) const;

  static constexpr double kStartPart = 0.02, kBigPart = 0.9;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::jobs
