#pragma once

#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/jobs/scheduler.h"
#include "dovetail/jobs/shard_book.h"

/// What a Scheduler keeps: leases and what ends them (scheduler.cpp), shares and who takes what
/// (scheduler_shares.cpp).
namespace dovetail::jobs {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct ShardRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

struct SlotState {
  int64_t lease = 0;    ///< 0: none
  bool silent = false;  ///< its lease is over
};

struct LeaseTime {
  int64_t rows;
  double seconds;
};

struct DeviceState {
  SchedulerDevice given;
  std::vector<SlotState> slots;
  ShardRange own;
  int64_t share = 0, rows = 0, misses = 0, probes = 0;
  std::vector<LeaseTime> times = {};  ///< of this iteration
  std::optional<std::string> left_out = {};

  /// Those that are not silent.
  int64_t usable_slots() const;
  /// By its history; before it has one, by what this iteration showed.
  std::optional<double> expected_s(int64_t num_rows) const;
};

struct OpenLease {
  Lease lease;
  int64_t rows = 0;
  double since_s = 0, expected_s = 0;
  bool over = false;
  std::vector<bool> came = {};
};

struct Scheduler::State {
  void learn();
  std::vector<int64_t> divide() const;
  bool knows_all() const;
  double left_s(size_t device, double now_s) const;
  int64_t lease_size(DeviceState& device) const;
  int rank_of(size_t device, int64_t shard) const;
  bool may_take(size_t device, int64_t shard) const;
  std::optional<int64_t> take_from(std::deque<int64_t>& queue, size_t device) const;
  std::optional<int64_t> steal(size_t device, double now_s);
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
  std::deque<int64_t> returned;  ///< open to all devices
  std::deque<int64_t> checks;    ///< computed, and to be computed again by another device
  std::vector<Counted> counted;
  int64_t iteration = 0, next_lease = 1;
  double begun_s = 0, last_over_s = 0;
};

}  // namespace dovetail::jobs
