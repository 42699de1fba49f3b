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

/// How the shards of an iteration are shared among devices.
enum class SharePolicy {
  kStatic,    ///< in the ratio of SchedulerDevice::ratio
  kAffine,    ///< so that all end together by their measured speeds (jobs/partition.h); a share may
              ///< be 0
  kStealing,  ///< as kAffine, and who is done takes single shards of who would be done last
};
/// "static", "affine", "stealing"; UserError for another name.
SharePolicy parse_share_policy(std::string_view name);

struct SchedulerDevice {
  std::string name;   ///< in messages
  int64_t slots = 1;  ///< leases that it works on at a time: its threads, its streams
  double ratio = 1;   ///< kStatic: its part, in proportion to the others'
  int64_t max_rows = std::numeric_limits<int64_t>::max();  ///< what its memory holds
  SpeedHistory history = {};  ///< of one slot: rows and seconds of leases
};

struct SchedulerOptions {
  SharePolicy policy = SharePolicy::kStealing;
  /// A lease is over after this many times what it was expected to take, and not before
  /// min_lease_s; after first_lease_s while the device's speed is unknown. Devices of which every
  /// slot has been silent for first_lease_s beyond its lease are left out.
  double lease_factor = 4, min_lease_s = 0.25, first_lease_s = 30;
  int64_t max_misses =
      3;  ///< failed or overdue leases in a row, with nothing delivered between: it is left out
  int64_t max_attempts = 3;  ///< exceptions on one shard: the iteration is given up
  int64_t verify_every =
      0;  ///< one shard in so many is computed on two devices and compared; 0: none
  double hysteresis = 0.02;  ///< shares stay as they are while moving them would gain less
};

/// Shards [begin, begin + count) of an iteration, for one slot of a device.
struct Lease {
  int64_t id = 0, iteration = 0;
  size_t device = 0;
  int64_t slot = 0, begin = 0, count = 0;
  double deadline_s = 0;
};

/// No device is left to compute with, or two disagree and no third can decide. Names each with its
/// reason.
class DevicesLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Who computes which shard next: the decisions of the runtime and of the simulator. Knows no
/// threads, no clock and no data: the caller says what time it is (seconds, never going back), and
/// makes one call at a time.
///
/// An iteration is begun with its shards. Every free slot asks `next` and delivers its lease shard
/// by shard, or fails it. A shard is open, leased, or done, and exactly one delivery of it counts:
/// `take_counted` says whose. Later ones are dropped. The caller calls `expire` whenever the time
/// that it returned has come; slots that got nothing ask again after every delivery, failure and
/// `expire`.
///
/// Each device has a share of its own, a range of shards in the order of the devices: from one
/// iteration to the next only boundaries move. Shards of a lease that failed, was given up or is
/// over are open to all devices, before all others, and go back to a device that failed them only
/// when no other is there. While a speed is unknown, shares are equal and whoever is done takes
/// from the others, under kAffine too.
///
/// A lease is as small as its start allows (start_s at most kStartPart of it), and under kStealing
/// never more than nine tenths of what is left of a share for each slot: the last tenth goes out in
/// small pieces.
///
/// Any call may throw DevicesLost.
class Scheduler {
 public:
  /// At least one device; UserError where verify_every asks for a second one that is not there.
  explicit Scheduler(std::vector<SchedulerDevice> devices, const SchedulerOptions& options = {});
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;

  /// Begins an iteration over shards of so many rows, of one size but for the last, which may be
  /// smaller. What leases of the last iteration still deliver is dropped.
  void begin(const std::vector<int64_t>& shard_rows, double now_s);

  /// What the slot works on next. A lease that the slot still had is given up.
  std::optional<Lease> next(size_t device, int64_t slot, double now_s);

  /// The lease's result of one of its shards is there. `digest` stands for its bits where shards
  /// are verified.
  void deliver(const Lease& lease, int64_t shard, double now_s, uint64_t digest = 0);

  /// Computing `shard` threw; ends the lease. False once the shard was tried max_attempts times: it
  /// is then better to end the job with what was thrown.
  bool fail(const Lease& lease, int64_t shard, const std::string& reason);

  /// Opens the shards of leases that are over. Returns when to call it next.
  double expire(double now_s);

  /// Results that count since the last call, of each shard one: that of `device`.
  struct Counted {
    int64_t shard;
    size_t device;
  };
  std::vector<Counted> take_counted();
  bool is_verified(int64_t shard) const;
  bool done() const;

  /// Leaves a device out from now on; the first reason stays.
  void leave_out(size_t device, const std::string& reason);
  const std::optional<std::string>& left_out(size_t device) const;

  /// Shards of each device as the iteration began.
  std::vector<int64_t> shares() const;
  /// With the times of all iterations that are over.
  const SpeedHistory& history(size_t device) const;

  static constexpr double kStartPart = 0.02, kBigPart = 0.9;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::jobs
