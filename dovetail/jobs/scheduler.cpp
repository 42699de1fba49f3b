#include "dovetail/jobs/scheduler.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/enum_names.h"
#include "dovetail/jobs/scheduler_state.h"

namespace dovetail::jobs {

SharePolicy parse_share_policy(std::string_view name) {
  constexpr std::array<std::string_view, 3> kNames = {"static", "affine", "stealing"};
  return parse_enum<SharePolicy>("hybrid", "way of sharing", name, kNames);
}

Scheduler::Scheduler(std::vector<SchedulerDevice> devices, const SchedulerOptions& options)
    : state_(std::make_unique<State>()) {
  DOVETAIL_CHECK(!devices.empty(), "a scheduler without devices");
  user_check(options.verify_every <= 0 || devices.size() >= 2,
             "hybrid: to verify shards takes two executors, and there is one");
  state_->options = options;
  for (SchedulerDevice& device : devices) {
    DOVETAIL_CHECK(device.slots > 0 && device.ratio > 0, "device {} of {} slots and ratio {}",
                   device.name, device.slots, device.ratio);
    std::vector<SlotState> slots(static_cast<size_t>(device.slots));
    state_->devices.push_back({.given = std::move(device), .slots = std::move(slots), .own = {}});
  }
}

Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;

void Scheduler::begin(const std::vector<int64_t>& shard_rows, double now_s) {
  State& s = *state_;
  DOVETAIL_CHECK(!shard_rows.empty() && std::ranges::min(shard_rows) > 0,
                 "an iteration over {} shards", shard_rows.size());
  s.learn();
  for (auto& [id, open] : s.leases) {
    open.over = true;
    s.devices[open.lease.device].slots[static_cast<size_t>(open.lease.slot)].silent = true;
  }
  s.book.begin(shard_rows, ++s.iteration, s.options.verify_every);
  s.returned.clear();
  s.checks.clear();
  s.counted.clear();
  s.begun_s = s.last_over_s = now_s;
  const std::vector<int64_t> shares = s.divide();
  int64_t next = 0;
  for (size_t d = 0; d < shares.size(); ++d) {
    DeviceState& device = s.devices[d];
    device.share = shares[d];
    device.rows = device.probes = 0;
    device.own = {next, next + shares[d]};
    next += shares[d];
  }
  for (; next < s.book.size(); ++next)
    s.returned.push_back(next);  // no slot is free: the first device that returns takes it
}

Lease Scheduler::State::lease(size_t d, int64_t slot, ShardRange shards, double now_s) {
  DeviceState& device = devices[d];
  const int64_t rows = book.rows(shards.begin, shards.size());
  const auto expected = device.expected_s(rows);
  const Lease lease{.id = next_lease++,
                    .iteration = iteration,
                    .device = d,
                    .slot = slot,
                    .begin = shards.begin,
                    .count = shards.size(),
                    .deadline_s = now_s + lease_s(expected)};
  device.slots[static_cast<size_t>(slot)].lease = lease.id;
  device.rows += rows;
  leases.emplace(lease.id,
                 OpenLease{.lease = lease,
                           .rows = rows,
                           .since_s = now_s,
                           .expected_s = expected.value_or(0),
                           .came = std::vector<bool>(static_cast<size_t>(lease.count), false)});
  return lease;
}

std::optional<Lease> Scheduler::next(size_t d, int64_t slot, double now_s) {
  State& s = *state_;
  DeviceState& device = s.devices.at(d);
  SlotState& here = device.slots.at(static_cast<size_t>(slot));
  if (const auto open = s.leases.find(here.lease); open != s.leases.end()) {
    const bool missed = !open->second.over;
    s.open_rest(open->second);
    s.end_lease(open);
    if (missed) s.miss(d, "it gave a lease up");
  }
  if (device.left_out || done()) return std::nullopt;
  const auto shards = s.pick(d, now_s);
  if (!shards) return std::nullopt;
  return s.lease(d, slot, *shards, now_s);
}

bool Scheduler::deliver(const Lease& lease, int64_t begin, int64_t count, double now_s,
                        uint64_t digest) {
  State& s = *state_;
  DeviceState& device = s.devices.at(lease.device);
  DOVETAIL_CHECK(count > 0 && begin >= lease.begin && begin + count <= lease.begin + lease.count,
                 "shards [{}, {}) are not in the lease", begin, begin + count);
  if (const auto open = s.leases.find(lease.id); open != s.leases.end()) {
    std::fill_n(open->second.came.begin() + (begin - lease.begin), count, true);
    if (std::ranges::all_of(open->second.came, std::identity())) {
      const double seconds = now_s - open->second.since_s;
      if (seconds > 0) device.times.push_back({open->second.rows, seconds});
      s.end_lease(open);
    }
  }
  if (device.left_out) return false;
  device.misses = device.failed_blocks = 0;
  if (lease.iteration != s.iteration) return false;
  const ShardBook::Result result = s.book.deliver(begin, count, lease.device, digest);
  if (result.outcome == ShardBook::Outcome::kCounts)
    s.counted.push_back({begin, count, result.device});
  for (const size_t wrong : result.wrong)
    s.leave_out(wrong,
                fmt::format("its result of shard {} is not the one that two others have", begin));
  if (result.outcome == ShardBook::Outcome::kOpen) s.checks.push_back(begin);
  s.settle_checks();
  return result.outcome != ShardBook::Outcome::kDropped;
}

bool Scheduler::fail(const Lease& lease, int64_t begin, int64_t count, const std::string& reason) {
  State& s = *state_;
  const bool current = lease.iteration == s.iteration && !s.devices.at(lease.device).left_out;
  int64_t attempts = 0;
  for (int64_t i = begin; current && i < begin + count; ++i)
    if (!s.book.done(i)) attempts = s.book.failed(i, lease.device, /*alone=*/count == 1);
  if (const auto open = s.leases.find(lease.id); open != s.leases.end()) {
    s.open_rest(open->second);
    s.end_lease(open);
  }
  if (!current) return true;
  if (count == 1 && attempts >= s.options.max_attempts) {
    take_back();
    return false;
  }
  DeviceState& device = s.devices[lease.device];
  device.threw_in = s.iteration;
  if (count == 1) {
    s.miss(lease.device, reason);
  } else if (++device.failed_blocks >= s.options.max_misses) {
    s.leave_out(lease.device,
                fmt::format("{} calls for several shards threw in a row, the last one because {}",
                            device.failed_blocks, reason));
  }
  return true;
}

bool Scheduler::take_back() {
  State& s = *state_;
  bool all = true;
  for (DeviceState& device : s.devices) {
    if (!device.left_out) continue;
    all = all && device.threw_in == s.iteration;
    if (device.threw_in != s.iteration) continue;
    device.left_out.reset();
    device.misses = device.failed_blocks = 0;
  }
  return all;
}

/// Opens the missing shards of a lease, unless this was done before.
void Scheduler::State::open_rest(OpenLease& open) {
  if (open.over) return;
  open.over = true;
  for (int64_t i = 0; i < open.lease.count; ++i) {
    const int64_t shard = open.lease.begin + i;
    if (open.came[static_cast<size_t>(i)] || book.done(shard)) continue;
    // A shard that threw is next, so that a bad shard soon ends the job.
    std::deque<int64_t>& queue = book.voters(shard).empty() ? returned : checks;
    book.has_failed(shard, open.lease.device) && open.lease.count == 1 ? queue.push_front(shard)
                                                                       : queue.push_back(shard);
  }
}

void Scheduler::State::open_share(DeviceState& device) {
  for (; device.own.size() > 0; ++device.own.begin) returned.push_back(device.own.begin);
}

void Scheduler::State::end_lease(std::map<int64_t, OpenLease>::iterator open) {
  const Lease& lease = open->second.lease;
  devices[lease.device].slots[static_cast<size_t>(lease.slot)] = {};
  leases.erase(open);
}

void Scheduler::State::miss(size_t d, const std::string& reason) {
  if (++devices[d].misses >= options.max_misses)
    leave_out(d, fmt::format("{} leases in a row came to nothing, the last one because {}",
                             devices[d].misses, reason));
}

void Scheduler::State::leave_out(size_t d, const std::string& reason) {
  DeviceState& device = devices[d];
  if (device.left_out) return;
  device.left_out = reason;
  open_share(device);
  for (auto& [id, open] : leases)
    if (open.lease.device == d && open.lease.iteration == iteration) open_rest(open);
  settle_checks();
  if (std::ranges::any_of(devices, [](const DeviceState& other) { return !other.left_out; }))
    return;
  std::vector<std::string> all;
  for (const DeviceState& other : devices) all.push_back(other.given.name + ": " + *other.left_out);
  throw DevicesLost(fmt::format("hybrid: no executor is left; {}", fmt::join(all, "; ")));
}

/// Accepts shards that wait for a second result, if no other device can compute them.
void Scheduler::State::settle_checks() {
  for (const int64_t shard : checks) {
    if (book.done(shard)) continue;
    bool possible = false;
    for (size_t d = 0; d < devices.size(); ++d) possible = possible || rank_of(d, shard) >= 0;
    if (possible) continue;
    size_t device = 0;
    if (book.accept_unverified(shard, device)) {
      counted.push_back({shard, 1, device});
      continue;
    }
    std::vector<std::string> names;
    for (const size_t voter : book.voters(shard)) names.push_back(devices[voter].given.name);
    throw DevicesLost(fmt::format(
        "hybrid: {} have different results of shard {}, and no other executor can decide",
        fmt::join(names, " and "), shard));
  }
}

double Scheduler::State::expire_leases(double now_s) {
  double next = kNever;
  std::vector<size_t> missed;
  for (auto& [id, open] : leases) {
    if (open.over) continue;
    if (open.lease.deadline_s > now_s) {
      next = std::min(next, open.lease.deadline_s);
      continue;
    }
    open_rest(open);
    DeviceState& device = devices[open.lease.device];
    device.slots[static_cast<size_t>(open.lease.slot)].silent = true;
    open_share(device);
    last_over_s = now_s;
    missed.push_back(open.lease.device);
  }
  for (const size_t d : missed) miss(d, "its time was over");
  if (!missed.empty()) settle_checks();
  return next;
}

/// Opens the shares of devices that do not ask for leases.
double Scheduler::State::expire_shares(double now_s) {
  double next = kNever;
  for (DeviceState& device : devices) {
    const auto is_working = [](const SlotState& slot) { return slot.lease != 0 && !slot.silent; };
    if (device.own.size() == 0 || std::ranges::any_of(device.slots, is_working)) continue;
    const double end = begun_s + lease_s(device.expected_s(device.share * book.rows(0, 1)));
    if (end <= now_s) {
      open_share(device);
    } else {
      next = std::min(next, end);
    }
  }
  return next;
}

void Scheduler::State::refuse_silence(double now_s) {
  for (size_t d = 0; d < devices.size(); ++d)
    if (!devices[d].left_out)
      leave_out(d, fmt::format("it has been silent since {:.3g} s", now_s - begun_s));
}

double Scheduler::expire(double now_s) {
  State& s = *state_;
  if (done()) return kNever;
  const double lease_end = s.expire_leases(now_s), share_end = s.expire_shares(now_s);
  const bool someone = std::ranges::any_of(
      s.devices, [](const DeviceState& device) { return device.usable_slots() > 0; });
  if (someone) return std::min(lease_end, share_end);
  const double end = s.last_over_s + s.options.first_lease_s;
  if (end <= now_s) s.refuse_silence(now_s);
  return std::min({lease_end, share_end, end});
}

std::vector<Scheduler::Counted> Scheduler::take_counted() {
  return std::exchange(state_->counted, {});
}

bool Scheduler::is_verified(int64_t shard) const { return state_->book.is_verified(shard); }

bool Scheduler::done() const { return state_->book.all_done(); }

void Scheduler::leave_out(size_t device, const std::string& reason) {
  state_->leave_out(device, reason);
}

const std::optional<std::string>& Scheduler::left_out(size_t device) const {
  return state_->devices.at(device).left_out;
}

std::vector<int64_t> Scheduler::shares() const {
  std::vector<int64_t> shares;
  for (const DeviceState& device : state_->devices) shares.push_back(device.share);
  return shares;
}

const SpeedHistory& Scheduler::history(size_t device) const {
  return state_->devices.at(device).given.history;
}

}  // namespace dovetail::jobs
