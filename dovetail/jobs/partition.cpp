#include "dovetail/jobs/partition.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>
#include <tuple>

#include "dovetail/base/error.h"

namespace dovetail::jobs {
namespace {

double seconds_for(const DeviceCost& device, int64_t grains, int64_t grain) {
  if (grains == 0) return 0;
  const int64_t rounds = (grains + device.slots - 1) / device.slots;
  return device.start_s + device.row_s * static_cast<double>(rounds * device.slots * grain);
}

/// Returns the time from which on a device computes more than its min_rows.
double free_s(const DeviceCost& device) {
  return device.start_s + device.row_s * static_cast<double>(device.min_rows);
}

/// Returns when all `open` devices are done with their min_rows and `rows` further rows that can be
/// cut anywhere. Closes devices that are better not used, the one with the latest start first. Its
/// removal moves T least.
double common_end(double rows, std::span<const DeviceCost> devices, std::vector<bool>& open) {
  while (true) {
    double numerator = rows, denominator = 0;
    int64_t latest = -1;
    for (size_t i = 0; i < devices.size(); ++i) {
      if (!open[i]) continue;
      numerator += free_s(devices[i]) / devices[i].row_s;
      denominator += 1 / devices[i].row_s;
      if (latest < 0 || free_s(devices[i]) > free_s(devices[static_cast<size_t>(latest)]))
        latest = static_cast<int64_t>(i);
    }
    if (latest < 0) return 0;
    const double end = numerator / denominator;
    if (end > free_s(devices[static_cast<size_t>(latest)])) return end;
    open[static_cast<size_t>(latest)] = false;
  }
}

/// Returns whole grains of each device beyond its min_rows, at most as many as in the best
/// partition. `most` holds the maximum of each device.
std::vector<int64_t> round_down(int64_t grains, std::span<const DeviceCost> devices,
                                const std::vector<int64_t>& most, int64_t grain) {
  std::vector<int64_t> share(devices.size(), 0);
  std::vector<bool> full(devices.size(), false);
  int64_t left = grains;
  for (bool again = true; again && left > 0;) {
    again = false;
    std::vector<bool> open(devices.size());
    for (size_t i = 0; i < devices.size(); ++i) open[i] = !full[i];
    const double end = common_end(static_cast<double>(left * grain), devices, open);
    for (size_t i = 0; i < devices.size(); ++i) {
      if (!open[i] || full[i]) continue;
      const int64_t slots = devices[i].slots, least = devices[i].min_rows / grain;
      const double round_s = devices[i].row_s * static_cast<double>(grain * slots);
      // Slightly below, so that rounding of T does not lift a share of whole grains above the best
      // one.
      const double rounds = std::floor((end - devices[i].start_s) / round_s * (1 - 1e-12));
      share[i] = std::max<int64_t>(0, static_cast<int64_t>(rounds) * slots - least);
      if (share[i] < most[i]) continue;
      share[i] = most[i];
      left -= most[i];
      full[i] = again = true;
    }
    if (again) {  // the other devices take more than this pass gave them
      for (size_t i = 0; i < devices.size(); ++i)
        if (!full[i]) share[i] = 0;
    }
  }
  return share;
}

void check(int64_t rows, std::span<const DeviceCost> devices, int64_t grain) {
  DOVETAIL_CHECK(rows >= 0 && grain >= 1, "{} rows in grains of {}", rows, grain);
  int64_t least = 0;
  for (const DeviceCost& device : devices) {
    DOVETAIL_CHECK(std::isfinite(device.row_s) && device.row_s > 0 &&
                       std::isfinite(device.start_s) && device.start_s >= 0 && device.max_rows >= 0,
                   "a device of {} s + {} s a row, at most {} rows", device.start_s, device.row_s,
                   device.max_rows);
    DOVETAIL_CHECK(
        device.min_rows >= 0 && device.min_rows % grain == 0 && device.min_rows <= device.max_rows,
        "a device with at least {} and at most {} rows in grains of {}", device.min_rows,
        device.max_rows, grain);
    DOVETAIL_CHECK(device.slots >= 1, "a device of {} slots", device.slots);
    least += device.min_rows;
  }
  DOVETAIL_CHECK(least <= rows, "devices that have {} of {} rows in any case", least, rows);
}

/// Returns the grains of each device, min_rows included. `most` holds the maximum beyond these.
std::vector<int64_t> share_out(int64_t grains, std::span<const DeviceCost> devices,
                               const std::vector<int64_t>& most, int64_t grain) {
  std::vector<int64_t> share = round_down(grains, devices, most, grain);
  int64_t left = grains;
  for (const int64_t taken : share) left -= taken;
  const auto end_with = [&](size_t i, int64_t more) {
    return seconds_for(devices[i], devices[i].min_rows / grain + share[i] + more, grain);
  };

  // Time at which a device would be done with one more grain.
  using Next = std::tuple<double, size_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  const auto offer = [&](size_t i) {
    if (share[i] < most[i]) next.emplace(end_with(i, 1), i);
  };
  // Speeds of very different magnitude leave no digits of T for some shares. The device that is
  // done last then gives grains back.
  for (; left < 0; ++left) {
    size_t last = devices.size();
    for (size_t i = 0; i < devices.size(); ++i)
      if (share[i] > 0 && (last == devices.size() || end_with(i, 0) > end_with(last, 0))) last = i;
    --share[last];
  }
  for (size_t i = 0; i < devices.size(); ++i) offer(i);
  for (; left > 0; --left) {
    const size_t i = std::get<1>(next.top());
    next.pop();
    ++share[i];
    offer(i);
  }
  for (size_t i = 0; i < devices.size(); ++i) share[i] += devices[i].min_rows / grain;
  return share;
}

}  // namespace

double seconds_of(std::span<const int64_t> shares, std::span<const DeviceCost> devices,
                  int64_t grain) {
  double last_s = 0;
  for (size_t i = 0; i < devices.size(); ++i)
    last_s = std::max(last_s, seconds_for(devices[i], shares[i], grain));
  return last_s;
}

Partition partition(int64_t rows, std::span<const DeviceCost> devices, int64_t grain) {
  check(rows, devices, grain);
  const int64_t grains = (rows + grain - 1) / grain;
  std::vector<int64_t> most;
  int64_t room = 0, left = grains;
  for (const DeviceCost& device : devices) {
    const int64_t least = device.min_rows / grain;
    most.push_back(std::min(device.max_rows / grain, grains) - least);
    room += least + most.back();
    left -= least;
  }
  user_check(room >= grains, "hybrid: the devices' memories hold {} rows in grains of {}, not {}",
             room * grain, grain, rows);
  Partition result{.rows = share_out(left, devices, most, grain)};
  std::vector<int64_t>& share = result.rows;
  result.seconds = seconds_of(share, devices, grain);
  for (int64_t& of_device : share) of_device *= grain;
  // The last grain may be short. It belongs to the last device that has any rows.
  const auto last = std::find_if(share.rbegin(), share.rend(), [](int64_t r) { return r > 0; });
  if (last != share.rend()) *last -= grains * grain - rows;
  return result;
}

std::vector<int64_t> move_shares(std::span<const int64_t> before, int64_t rows,
                                 std::span<const DeviceCost> devices, int64_t grain,
                                 double hysteresis) {
  const Partition best = partition(rows, devices, grain);
  const int64_t grains = (rows + grain - 1) / grain;
  const bool covers = std::accumulate(before.begin(), before.end(), int64_t{0}) == grains;
  if (covers && seconds_of(before, devices, grain) <= best.seconds * (1 + hysteresis))
    return {before.begin(), before.end()};
  std::vector<int64_t> shares;
  for (const int64_t share : best.rows) shares.push_back((share + grain - 1) / grain);
  return shares;
}

}  // namespace dovetail::jobs
