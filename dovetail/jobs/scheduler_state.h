#pragma once

#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/jobs/partition.h"
#include "dovetail/jobs/scheduler.h"
#include "dovetail/jobs/shard_book.h"

/// Private state of a Scheduler. jobs/scheduler.h explains slot, lease, share, miss and "left out".
/// Members of Scheduler::State that begin and end leases are in scheduler.cpp. Members that compute
/// shares and choose the next shard are in scheduler_shares.cpp.
namespace dovetail::jobs {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

/// Shards [begin, end).
struct ShardRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

struct SlotState {
  int64_t lease = 0;  ///< Lease::id of the current lease; 0: none
  /// True after its lease expired, until that lease ends by a delivery, failure or `next`.
  bool silent = false;
};

/// Rows of a finished lease, and the seconds from its beginning to its last delivery.
struct LeaseTime {
  int64_t rows;
  double seconds;
};

struct DeviceState {
  SchedulerDevice given;         ///< description passed to the constructor; its history grows
  std::vector<SlotState> slots;  ///< one per slot
  ShardRange own;                ///< shards of the device's share that are not leased yet
  /// `share` is the number of shards in the whole share. `rows` is the number of rows in the
  /// device's leases of this iteration. `misses` is the number of misses since the last delivery.
  /// `probes` is the number of leases given in this iteration while the start was unknown.
  int64_t share = 0, rows = 0, misses = 0, probes = 0;
  /// Number of calls for several shards that threw since the last delivery.
  int64_t failed_blocks = 0;
  /// Last iteration in which a lease of the device was finished, and the time of its end; 0: none.
  int64_t measured_in = 0;
  double measured_s = 0;
  std::vector<LeaseTime> times = {};  ///< times of the leases finished in this iteration
  /// Reason why the device is left out; nullopt: it is not.
  std::optional<std::string> left_out = {};
  int64_t threw_in = 0;  ///< last iteration in which the device threw; 0: none

  /// Returns the number of slots that are not silent; 0 if the device is left out.
  int64_t usable_slots() const;
  /// Returns the expected seconds that one slot needs for `num_rows` rows. Uses the history. If the
  /// history is empty, uses the last finished lease of this iteration. Returns nullopt if there is
  /// none either.
  std::optional<double> expected_s(int64_t num_rows) const;
};

/// Lease that its slot still holds.
struct OpenLease {
  Lease lease;
  int64_t rows = 0;  ///< number of rows in all shards of the lease
  /// Time at which the lease began, and its expected duration in seconds (0: unknown).
  double since_s = 0, expected_s = 0;
  bool over = false;  ///< true once its shards without a result were opened to all devices
  std::vector<bool> came = {};  ///< one entry per shard of the lease: true if it was delivered
};

struct Scheduler::State {
  void learn();
  std::vector<int64_t> divide() const;
  void ask_for_probes(std::vector<DeviceCost>& costs, const std::vector<size_t>& which) const;
  bool ask_again(std::vector<DeviceCost>& costs, const std::vector<size_t>& which,
                 const std::vector<int64_t>& shares) const;
  bool knows_all() const;
  double left_s(size_t device, double now_s) const;
  int64_t lease_size(DeviceState& device) const;
  int rank_of(size_t device, int64_t shard) const;
  bool may_take(size_t device, int64_t shard) const;
  std::optional<int64_t> take_from(std::deque<int64_t>& queue, size_t device) const;
  bool is_probe(const DeviceState& device) const;
  std::optional<ShardRange> steal(size_t device, double now_s);
  std::optional<ShardRange> pick(size_t device, double now_s);
  Lease lease(size_t device, int64_t slot, ShardRange shards, double now_s);
  double lease_s(std::optional<double> expected_s) const;
  void open_rest(OpenLease& open);
  void open_share(DeviceState& device);
  void end_lease(std::map<int64_t, OpenLease>::iterator open);
  void miss(size_t device, const std::string& reason);
  void leave_out(size_t device, const std::string& reason);
  void settle_checks();
  double expire_leases(double now_s);
  double expire_shares(double now_s);
  void refuse_silence(double now_s);

  SchedulerOptions options;
  std::vector<DeviceState> devices;
  ShardBook book;
  std::map<int64_t, OpenLease> leases;
  std::deque<int64_t> returned;  ///< open shards (any device may take them) without any result
  /// Shards selected for verification that need a result from another device.
  std::deque<int64_t> checks;
  std::vector<Counted> counted;  ///< result of the next take_counted
  /// Number of the current iteration, and Lease::id of the next lease.
  int64_t iteration = 0, next_lease = 1;
  /// Time at which the iteration began, and time at which a lease last expired.
  double begun_s = 0, last_over_s = 0;
};

}  // namespace dovetail::jobs
