#include <algorithm>
#include <cmath>

#include "dovetail/jobs/scheduler_state.h"

namespace dovetail::jobs {
namespace {

/// Maximum lease times per iteration that go into the history. SpeedHistory needs this many to
/// detect a changed machine.
constexpr size_t kTimesKept = SpeedHistory::kChanged;

/// Number of iterations after which a device without a share is measured again. This may cost a
/// part kMeasureCost of the time since its last measurement.
constexpr int64_t kMeasureAgain = 16;
constexpr double kMeasureCost = 0.02;

}  // namespace

int64_t DeviceState::usable_slots() const {
  return left_out ? 0 : std::ranges::count(slots, false, &SlotState::silent);
}

std::optional<double> DeviceState::expected_s(int64_t num_rows) const {
  if (const auto speed = given.history.speed())
    return speed->start_s + speed->row_s * static_cast<double>(num_rows);
  if (times.empty()) return std::nullopt;
  return times.back().seconds * static_cast<double>(num_rows) /
         static_cast<double>(times.back().rows);
}

/// Adds some times of the previous iteration to the histories, from the shortest lease to the
/// longest. A history takes equally long for each time, however short the lease was.
void Scheduler::State::learn() {
  for (DeviceState& device : devices) {
    if (!device.times.empty()) {
      device.measured_in = iteration;
      device.measured_s = begun_s;
    }
    std::ranges::stable_sort(device.times, {}, &LeaseTime::rows);
    const size_t count = device.times.size(), kept = std::min(kTimesKept, count);
    for (size_t i = 0; i < kept; ++i) {
      const size_t place = kept == 1 ? 0 : i * (count - 1) / (kept - 1);
      device.given.history.add(device.times[place].rows, device.times[place].seconds);
    }
    device.times.clear();
  }
}

bool Scheduler::State::knows_all() const {
  return std::ranges::all_of(devices, [](const DeviceState& device) {
    return device.usable_slots() == 0 || device.given.history.speed();
  });
}

/// Asks for at least one shard for each device of unknown speed. If there are fewer shards, other
/// devices get one in the next iteration.
void Scheduler::State::ask_for_probes(std::vector<DeviceCost>& costs,
                                      const std::vector<size_t>& which) const {
  int64_t left = book.rows(0, book.size()) / book.rows(0, 1);
  for (size_t i = 0; i < which.size() && left > 0; ++i) {
    const size_t turn = (i + static_cast<size_t>(iteration - 1)) % which.size();
    if (devices[which[turn]].given.history.speed() || costs[turn].max_rows < book.rows(0, 1))
      continue;
    costs[turn].min_rows = book.rows(0, 1);
    --left;
  }
}

/// Asks for one shard for each device that would get none and was not measured for kMeasureAgain
/// iterations. Others may wait for it, but not long (kMeasureCost). Returns true if there is one.
bool Scheduler::State::ask_again(std::vector<DeviceCost>& costs, const std::vector<size_t>& which,
                                 const std::vector<int64_t>& shares) const {
  const int64_t grain = book.rows(0, 1);
  const double seconds = seconds_of(shares, costs, grain);
  bool any = false;
  for (size_t i = 0; i < which.size(); ++i) {
    const DeviceState& device = devices[which[i]];
    if (shares[i] > 0 || iteration - device.measured_in <= kMeasureAgain ||
        costs[i].max_rows < grain)
      continue;
    const double waiting_s = device.expected_s(grain).value_or(kNever) - seconds;
    if (waiting_s > kMeasureCost * (begun_s - device.measured_s)) continue;
    costs[i].min_rows = grain;
    any = true;
  }
  return any && shares.size() <= static_cast<size_t>(book.size());
}

/// Returns the number of shards of each device.
std::vector<int64_t> Scheduler::State::divide() const {
  const int64_t rows = book.rows(0, book.size()), grain = book.rows(0, 1);
  std::vector<DeviceCost> costs;
  std::vector<size_t> which;
  std::vector<int64_t> before;
  for (size_t d = 0; d < devices.size(); ++d) {
    const int64_t usable = devices[d].usable_slots();
    if (usable == 0) continue;
    const auto slots = static_cast<double>(usable);
    which.push_back(d);
    before.push_back(devices[d].share);
    DeviceCost cost{.row_s = 1 / slots, .max_rows = devices[d].given.max_rows};
    if (options.policy == SharePolicy::kStatic) {
      cost.row_s = 1 / devices[d].given.ratio;
    } else if (knows_all()) {
      const Speed speed = *devices[d].given.history.speed();
      cost = {.start_s = speed.start_s,
              .row_s = speed.row_s / slots,
              .max_rows = cost.max_rows,
              .slots = usable};
    }
    costs.push_back(cost);
  }
  std::vector<int64_t> shares(devices.size(), 0);
  if (which.empty()) return shares;
  if (options.policy != SharePolicy::kStatic && !knows_all()) {
    ask_for_probes(costs, which);
    before.assign(which.size(), 0);  // shares without probes are not kept
  }
  std::vector<int64_t> moved = move_shares(before, rows, costs, grain, options.hysteresis);
  if (options.policy != SharePolicy::kStatic && knows_all() && ask_again(costs, which, moved)) {
    before.assign(which.size(), 0);
    moved = move_shares(before, rows, costs, grain, options.hysteresis);
  }
  for (size_t i = 0; i < which.size(); ++i) shares[which[i]] = moved[i];
  return shares;
}

/// Returns the time until the device is done with its lease and share. An overdue lease is expected
/// to take as long again as it is overdue.
double Scheduler::State::left_s(size_t d, double now_s) const {
  const DeviceState& device = devices[d];
  double seconds = device.expected_s(book.rows(device.own.begin, device.own.size())).value_or(0);
  for (const SlotState& slot : device.slots) {
    const auto open = leases.find(slot.lease);
    if (open != leases.end() && !open->second.over)
      seconds += std::abs(open->second.since_s + open->second.expected_s - now_s);
  }
  return seconds / static_cast<double>(std::max<int64_t>(1, device.usable_slots()));
}

int64_t Scheduler::State::lease_size(DeviceState& device) const {
  const int64_t slots = std::max<int64_t>(1, device.usable_slots());
  const auto rest =
      std::max(1.0, static_cast<double>(device.own.size()) / static_cast<double>(slots));
  const SpeedHistory& history = device.given.history;
  if (!history.has_start()) {
    const int64_t doublings = std::min<int64_t>(device.probes++ / slots, 30);
    return std::min(std::llround(std::ceil(rest / 2)), 1LL << doublings);
  }
  const auto speed = history.speed();
  const double shard_s = speed->row_s * static_cast<double>(book.rows(0, 1));
  const double least = std::ceil(speed->start_s / (kStartPart * shard_s));
  return std::llround(std::clamp(least, 1.0, rest));
}

/// Returns the priority of a device for a shard that any device may take; -1 if it must not take
/// it.
int Scheduler::State::rank_of(size_t d, int64_t shard) const {
  const DeviceState& device = devices[d];
  if (device.usable_slots() == 0 || book.has_voted(shard, d) ||
      device.rows + book.rows(shard, 1) > device.given.max_rows)
    return -1;
  if (book.has_failed(shard, d)) return 0;
  return device.share > 0 ? 2 : 1;
}

bool Scheduler::State::may_take(size_t d, int64_t shard) const {
  const int rank = rank_of(d, shard);
  if (rank < 0) return false;
  for (size_t other = 0; other < devices.size(); ++other)
    if (rank_of(other, shard) > rank) return false;
  return true;
}

std::optional<int64_t> Scheduler::State::take_from(std::deque<int64_t>& queue, size_t d) const {
  while (!queue.empty() && book.done(queue.front())) queue.pop_front();
  for (auto shard = queue.begin(); shard != queue.end(); ++shard) {
    if (book.done(*shard) || !may_take(d, *shard)) continue;
    const int64_t taken = *shard;
    queue.erase(shard);
    return taken;
  }
  return std::nullopt;
}

/// Returns true if the device has only the one shard that shall measure its speed.
bool Scheduler::State::is_probe(const DeviceState& device) const {
  return device.own.size() == 1 && device.rows == 0 && options.policy != SharePolicy::kStatic &&
         !device.given.history.speed();
}

/// Takes the last shards of the device that would finish last, if `thief` finishes them earlier.
std::optional<ShardRange> Scheduler::State::steal(size_t thief, double now_s) {
  std::optional<size_t> victim;
  double latest = -1;
  for (size_t d = 0; d < devices.size(); ++d) {
    if (devices[d].own.size() == 0 || is_probe(devices[d])) continue;
    const double left = devices[d].expected_s(1) ? left_s(d, now_s) : kNever;
    if (left <= latest) continue;
    latest = left;
    victim = d;
  }
  if (!victim) return std::nullopt;
  const DeviceState& taker = devices[thief];
  ShardRange& from = devices[*victim].own;
  const int64_t grain = book.rows(0, 1);
  if (taker.expected_s(grain).value_or(0) > latest) return std::nullopt;
  int64_t count = 1;
  const auto fast = taker.given.history.speed(), slow = devices[*victim].given.history.speed();
  if (fast && slow && latest < kNever) {
    const auto slots = static_cast<double>(devices[*victim].usable_slots());
    const double shard_s = (fast->row_s + slow->row_s / slots) * static_cast<double>(grain);
    count =
        std::clamp<int64_t>(std::llround((latest - fast->start_s) / shard_s / 2), 1, from.size());
  }
  const int64_t room = taker.given.max_rows - taker.rows;
  while (count > 0 && book.rows(from.end - count, count) > room) --count;
  if (count == 0) return std::nullopt;
  from.end -= count;
  return ShardRange{from.end, from.end + count};
}

std::optional<ShardRange> Scheduler::State::pick(size_t d, double now_s) {
  DeviceState& device = devices[d];
  for (std::deque<int64_t>* queue : {&returned, &checks})
    if (const auto shard = take_from(*queue, d)) return ShardRange{*shard, *shard + 1};
  if (device.own.size() > 0) {
    const int64_t begin = device.own.begin;
    device.own.begin += std::min(lease_size(device), device.own.size());
    return ShardRange{begin, device.own.begin};
  }
  if (options.policy == SharePolicy::kStealing ||
      (options.policy == SharePolicy::kAffine && !knows_all()))
    return steal(d, now_s);
  return std::nullopt;
}

double Scheduler::State::lease_s(std::optional<double> expected_s) const {
  return expected_s ? std::max(options.min_lease_s, options.lease_factor * *expected_s)
                    : options.first_lease_s;
}

}  // namespace dovetail::jobs
