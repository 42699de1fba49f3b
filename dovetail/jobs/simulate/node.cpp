#include "dovetail/jobs/simulate/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/schema/enum_names.h"

namespace dovetail::jobs {
namespace {

constexpr double kNeverEnds = std::numeric_limits<double>::infinity();

/// Returns a log-normal random number of mean 1 and this standard deviation, for (seed, index).
double noise_factor(uint64_t seed, uint64_t index, double deviation) {
  if (deviation == 0) return 1;
  const double variance = std::log1p(deviation * deviation);
  return std::exp(std::sqrt(variance) * random_normal(seed, RandomStream::kSample, index)[0] -
                  variance / 2);
}

std::vector<SchedulerDevice> scheduler_devices(const SimNode& node) {
  std::vector<SchedulerDevice> devices;
  for (const SimDevice& device : node.devices)
    devices.push_back({.name = device.name,
                       .slots = device.slots,
                       .ratio = device.ratio,
                       .max_rows = device.max_rows});
  return devices;
}

}  // namespace

SimFault::Kind parse_fault_kind(std::string_view name) {
  constexpr std::array<std::string_view, 3> kNames = {"throw", "hang", "slow"};
  return parse_enum<SimFault::Kind>("hybrid", "fault", name, kNames);
}

SimNode make_sim_node(const NodeParts& parts) {
  user_check(parts.cores >= parts.gpus,
             "hybrid: every GPU binds a core, but there are {} cores for {} GPUs", parts.cores,
             parts.gpus);
  const int64_t free_cores = parts.cores_compute ? parts.cores - parts.gpus : 0;
  user_check(free_cores + parts.gpus > 0,
             "hybrid: nothing computes in a node of {} cores and {} GPUs", parts.cores, parts.gpus);
  SimNode node;
  if (free_cores > 0) {
    node.devices.push_back(parts.core);
    node.devices.back().slots = free_cores;
    node.devices.back().ratio = parts.core.ratio * static_cast<double>(free_cores);
  }
  for (int64_t i = 0; i < parts.gpus; ++i) {
    node.devices.push_back(parts.gpu);
    if (parts.gpus > 1) node.devices.back().name += fmt::format(" {}", i);
  }
  return node;
}

SimNodeRun::SimNodeRun(size_t index, const SimNode& node, const std::vector<SimFault>& faults,
                       const SchedulerOptions& scheduling, uint64_t seed, Observer observer)
    : index_(index),
      node_(node),
      faults_(node.devices.size()),
      seed_(mix_seed(mix_seed(seed, name_key("hybrid.sim_node")), index)),
      observer_(std::move(observer)),
      scheduler_(scheduler_devices(node), scheduling),
      uses_(node.devices.size()) {
  for (const SimFault& fault : faults) {
    if (fault.node != index) continue;
    DOVETAIL_CHECK(fault.device < faults_.size() && fault.factor >= 1,
                   "a fault of device {}, {} times", fault.device, fault.factor);
    faults_[fault.device].push_back(fault);
  }
  for (size_t d = 0; d < node.devices.size(); ++d) {
    const SimDevice& device = node.devices[d];
    DOVETAIL_CHECK(device.speed.row_s > 0 && device.speed.start_s >= 0 && device.noise >= 0 &&
                       device.run_noise >= 0,
                   "device {} of {} s + {} s a row", device.name, device.speed.start_s,
                   device.speed.row_s);
    run_factor_.push_back(noise_factor(mix_seed(seed_, d), 0, device.run_noise));
    for (int64_t slot = 0; slot < device.slots; ++slot)
      slots_.push_back({.device = d, .slot = slot});
  }
}

double SimNodeRun::iterate(const std::vector<int64_t>& shard_rows, double begin_s) {
  now_s_ = added_s_ = std::max(now_s_, begin_s + node_.driver_s);
  ++iteration_;
  shard_rows_ = shard_rows;
  counted_.assign(shard_rows.size(), 0);
  // Arrivals of the previous iteration are dropped.
  while (!arrivals_.empty() && arrivals_.top().at_s <= now_s_) {
    slots_[arrivals_.top().slot].busy = false;
    arrivals_.pop();
  }
  scheduler_.begin(shard_rows, now_s_);
  wake_s_ = scheduler_.expire(now_s_);
  ask_all();
  while (!scheduler_.done()) {
    ++events_;
    if (!arrivals_.empty() && arrivals_.top().at_s <= wake_s_) {
      const Arrival arrival = arrivals_.top();
      arrivals_.pop();
      now_s_ = arrival.at_s;
      arrive(arrival);
    } else {
      DOVETAIL_CHECK(wake_s_ < kNeverEnds, "node {} waits for nothing", index_);
      now_s_ = wake_s_;
      wake_s_ = scheduler_.expire(now_s_);
    }
    count();
    ask_all();
  }
  for (size_t i = 0; i < counted_.size(); ++i)
    DOVETAIL_CHECK(counted_[i] == 1, "shard {} of node {} counts {} times", i, index_,
                   int{counted_[i]});
  for (size_t d = 0; d < uses_.size(); ++d) uses_[d].left_out = scheduler_.left_out(d).value_or("");
  return now_s_ = std::max(now_s_, added_s_);
}

void SimNodeRun::ask_all() {
  for (Slot& slot : slots_)
    if (!slot.busy) ask(slot);
}

void SimNodeRun::ask(Slot& slot) {
  const auto lease = scheduler_.next(slot.device, slot.slot, now_s_);
  if (!lease) return;
  wake_s_ = std::min(wake_s_, lease->deadline_s);
  slot.busy = true;
  slot.lease = *lease;
  slot.next_shard = lease->begin;
  slot.since_s = now_s_;
  slot.factor = run_factor_[slot.device] * noise_factor(mix_seed(seed_, slot.device),
                                                        static_cast<uint64_t>(lease->id),
                                                        node_.devices[slot.device].noise);
  note(SimEvent::What::kLease, slot, lease->begin);
  compute_next(slot, now_s_, true);
}

/// Starts the next shard of the slot's lease. Its arrival may never come.
void SimNodeRun::compute_next(Slot& slot, double from_s, bool first) {
  const Speed& speed = node_.devices[slot.device].speed;
  const auto rows = static_cast<double>(shard_rows_[static_cast<size_t>(slot.next_shard)]);
  const double work_s = slot.factor * ((first ? speed.start_s : 0) + speed.row_s * rows);
  const double at_s = finish_s(slot.device, from_s, work_s);
  if (at_s < kNeverEnds)
    arrivals_.push({at_s, ++order_, static_cast<size_t>(&slot - slots_.data())});
}

/// Returns when the device is done with `work_s` seconds of work that begin at from_s. Its rate
/// changes where faults begin and end.
double SimNodeRun::finish_s(size_t device, double from_s, double work_s) const {
  while (true) {
    double rate = 1, change_s = kNeverEnds;
    for (const SimFault& fault : faults_[device]) {
      if (fault.kind == SimFault::Kind::kThrow) continue;
      const double end_s = fault.at_s + fault.for_s;
      if (fault.at_s > from_s) {
        change_s = std::min(change_s, fault.at_s);
      } else if (end_s > from_s) {
        change_s = std::min(change_s, end_s);
        rate *= fault.kind == SimFault::Kind::kHang ? 0 : 1 / fault.factor;
      }
    }
    if (rate > 0 && from_s + work_s / rate <= change_s) return from_s + work_s / rate;
    if (change_s == kNeverEnds) return kNeverEnds;
    work_s -= (change_s - from_s) * rate;
    from_s = change_s;
  }
}

bool SimNodeRun::throws_at(size_t device, double at_s) const {
  return std::ranges::any_of(faults_[device], [at_s](const SimFault& fault) {
    return fault.kind == SimFault::Kind::kThrow && at_s >= fault.at_s &&
           at_s < fault.at_s + fault.for_s;
  });
}

void SimNodeRun::arrive(const Arrival& arrival) {
  Slot& slot = slots_[arrival.slot];
  slot.busy = false;
  if (slot.lease.iteration != iteration_) {  // the iteration of the lease is over
    ask(slot);
    return;
  }
  const int64_t shard = slot.next_shard++;
  if (throws_at(slot.device, now_s_)) {
    note(SimEvent::What::kThrow, slot, shard);
    user_check(scheduler_.fail(slot.lease, shard, 1, "it threw"),
               "hybrid: the simulated job ends at {:.6g} s: shard {} of node {} threw on every "
               "device that tried it",
               now_s_, shard, index_);
    ask(slot);
    return;
  }
  note(SimEvent::What::kDelivery, slot, shard);
  scheduler_.deliver(slot.lease, shard, 1, now_s_);
  if (slot.next_shard < slot.lease.begin + slot.lease.count) {
    slot.busy = true;
    compute_next(slot, now_s_, false);
    return;
  }
  SimDeviceUse& use = uses_[slot.device];
  ++use.leases;
  use.busy_s += now_s_ - slot.since_s;
  ask(slot);
}

void SimNodeRun::count() {
  for (const auto& [shard, one, device] : scheduler_.take_counted()) {
    ++counted_[static_cast<size_t>(shard)];
    uses_[device].rows += shard_rows_[static_cast<size_t>(shard)];
    added_s_ = std::max(added_s_, now_s_) + node_.add_s;
    if (observer_) observer_({SimEvent::What::kCount, now_s_, index_, device, 0, shard});
  }
}

void SimNodeRun::note(SimEvent::What what, const Slot& slot, int64_t shard) const {
  if (observer_) observer_({what, now_s_, index_, slot.device, slot.slot, shard});
}

}  // namespace dovetail::jobs
