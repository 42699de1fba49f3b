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

// Terms of this header:
//   - shard: a range of rows, the unit of work;
//   - iteration: one pass over all shards;
//   - device: something that computes shards: a group of CPU threads, a GPU or a simulated device;
//   - slot: one of the places of a device that work at the same time, such as a thread;
//   - lease: consecutive shards that a slot shall compute until a deadline;
//   - share: the range of shards intended for one device at the beginning of an iteration.

/// Method that divides the shards of an iteration among devices.
enum class SharePolicy {
  kStatic,  ///< Shares are in proportion to SchedulerDevice::ratio.
  /// Shares follow the measured speeds, so that all devices finish together (jobs/partition.h). A
  /// share may be 0.
  kAffine,
  /// Shares are computed as for kAffine. In addition, a device without work takes ("steals") single
  /// shards from the device that would finish last.
  kStealing,
};
/// Parses "static", "affine" or "stealing". Throws UserError for another name.
SharePolicy parse_share_policy(std::string_view name);

/// Description of a device.
struct SchedulerDevice {
  std::string name;   ///< name in messages
  int64_t slots = 1;  ///< number of leases that it computes at the same time
  double ratio = 1;   ///< kStatic: weight of its share, relative to the other devices
  /// Maximum number of rows that fit into its memory.
  int64_t max_rows = std::numeric_limits<int64_t>::max();
  SpeedHistory history = {};  ///< times of earlier leases, each measured on one slot
};

/// Options. A device that is "left out" gets no more shards. A "miss" is a lease that failed,
/// expired or was given up (see `next`).
struct SchedulerOptions {
  SharePolicy policy = SharePolicy::kStealing;
  /// A lease expires lease_factor times its expected seconds after its beginning, but not before
  /// min_lease_s. While the speed of its device is unknown, a lease expires after first_lease_s. If
  /// the leases of all slots have expired and no slot reports within first_lease_s, all devices are
  /// left out.
  double lease_factor = 4, min_lease_s = 0.25, first_lease_s = 30;
  /// Leaves a device out after this many misses in a row, with no delivered shard between them.
  /// Also after this many exceptions in a row in calls for several shards.
  int64_t max_misses = 3;
  /// Number of exceptions on one shard, computed alone, after which `fail` tells the caller to end
  /// the job.
  int64_t max_attempts = 3;
  /// One shard in `verify_every` is verified: two devices compute it, and their results must agree.
  /// 0: none.
  int64_t verify_every = 0;
  /// Keeps the shares of the previous iteration if new ones save at most this fraction of the
  /// iteration's predicted time.
  double hysteresis = 0.02;
};

/// Shards [begin, begin + count) of an iteration, assigned to one slot of a device until
/// deadline_s. All times of a scheduler are seconds on the caller's clock.
struct Lease {
  int64_t id = 0, iteration = 0;
  size_t device = 0;
  int64_t slot = 0, begin = 0, count = 0;
  double deadline_s = 0;
};

/// Thrown if no device is left to compute with. The message tells for each device why it was left
/// out. Also thrown if devices have different results for a shard and no other device can decide.
/// The message then names these devices.
class DevicesLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Scheduler that decides which device computes which shard next. The runtime (jobs/runtime.h) and
/// the simulator (jobs/simulate/) use it. It has no threads, no clock and no data. The caller
/// passes the time in seconds, which must not decrease. It makes one call at a time.
///
/// Protocol for the caller:
/// 1. Call `begin` to start an iteration.
/// 2. Call `next` for each free slot.
/// 3. Call `deliver` for computed shards of a lease, one or several at a time. If a shard throws,
///    call `fail`, which ends the lease.
/// 4. Call `expire` at the time that the previous `expire` returned. If `next` has since returned a
///    lease with an earlier deadline, call `expire` at that deadline.
/// 5. After each `deliver`, `fail` and `expire`, call `next` again for slots without a lease. The
///    same holds after a `next` of a slot that still held a lease.
///
/// A shard may be delivered several times, but exactly one delivery counts. `take_counted` tells
/// from which device. The scheduler ignores later deliveries of the shard.
///
/// Shares are consecutive ranges of shards, in the order of the devices. From one iteration to the
/// next, only the boundaries between them move. If a lease fails, expires or is given up, its
/// shards without a result are opened: any device may take them. Open shards are handed out before
/// all other shards. A device gets a shard on which it failed only if no other device can take that
/// shard. While the speed of any device is unknown, all slots get equal shares. But a device of
/// unknown speed gets at least one shard. If there are fewer shards than devices, they get one in
/// turns. A device that has had no share for some time gets one shard, since it may have become
/// faster. This costs at most 2 % of that time. Devices without work then take shards from other
/// devices, even under kAffine.
///
/// Number of shards in a lease:
/// - It is the smallest number for which start_s <= kStartPart * row_s * (rows of the lease). Here
///   start_s and row_s are the device's Speed (jobs/speed.h).
/// - While start_s is unknown, each lease of a slot has twice the shards of its previous one. The
///   first has one shard. None has more than half of the slot's part of the remaining share,
///   rounded up.
/// - It is at most the device's remaining share, divided by the number of slots. So a device whose
///   start is long takes its share at once, and other leases become small towards its end.
///
/// A device that steals takes half of the number of shards with which both would end together, but
/// at least one.
///
/// Any call may throw DevicesLost.
class Scheduler {
 public:
  /// Needs at least one device. Throws UserError if verify_every is above 0 and there is no second
  /// device.
  explicit Scheduler(std::vector<SchedulerDevice> devices, const SchedulerOptions& options = {});
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;

  /// Begins an iteration. `shard_rows` holds the number of rows of each shard. All numbers are
  /// equal, except that the last shard may have fewer rows. From now on, deliveries for earlier
  /// iterations are ignored.
  void begin(const std::vector<int64_t>& shard_rows, double now_s);

  /// Returns the next lease for a free slot of `device`, or nullopt if there is no work for it now.
  /// If the slot still holds a lease, that lease is given up.
  std::optional<Lease> next(size_t device, int64_t slot, double now_s);

  /// Records that `count` shards of the lease from `begin` on have been computed in one piece. The
  /// result counts for all of them or for none. `digest` is a hash of all bits of the result. It is
  /// compared between devices if a shard is verified (verify_every); such a shard is delivered
  /// alone. Returns false if the result does not count and never will.
  bool deliver(const Lease& lease, int64_t begin, int64_t count, double now_s, uint64_t digest = 0);

  /// Records that computing `count` shards of the lease from `begin` on threw, and ends the lease.
  /// `reason` is the text of the exception. Returns false if a shard has now thrown max_attempts
  /// times, counting only times that it was computed alone. The caller should then end the job with
  /// the exception. `fail` has then called take_back.
  bool fail(const Lease& lease, int64_t begin, int64_t count, const std::string& reason);
  /// Takes devices back that are left out and threw in this iteration. Call it if the task is at
  /// fault, and not the devices. Returns true if no device is left out any more.
  bool take_back();

  /// Ends leases whose deadline has passed and opens their shards without a result to all devices.
  /// Also opens the share of a device that does not ask for leases in time. Returns the time at
  /// which to call it next, infinity if never.
  double expire(double now_s);

  /// Device whose result counts for `count` shards from `begin` on.
  struct Counted {
    int64_t begin, count;
    size_t device;
  };
  /// Returns the shards that got their counting result since the previous call, in the pieces that
  /// were delivered. Each shard is returned once per iteration.
  std::vector<Counted> take_counted();
  /// Returns true if two devices must compute the shard in this iteration (verify_every).
  bool is_verified(int64_t shard) const;
  /// Returns true if a result counts for every shard of the iteration.
  bool done() const;

  /// Gives the device no more shards from now on. If it is already left out, the first reason
  /// stays.
  void leave_out(size_t device, const std::string& reason);
  /// Returns the reason why the device is left out; nullopt if it is not.
  const std::optional<std::string>& left_out(size_t device) const;

  /// Returns the number of shards in each device's share at the beginning of the iteration.
  std::vector<int64_t> shares() const;
  /// Returns the measured times of the device's leases in iterations before the current one.
  const SpeedHistory& history(size_t device) const;

  static constexpr double kStartPart = 0.02;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::jobs
