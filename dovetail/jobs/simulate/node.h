#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <string>
#include <vector>

#include "dovetail/jobs/scheduler.h"

namespace dovetail::jobs {

/// Simulated device, such as a GPU. jobs/scheduler.h explains slot and lease (shards assigned to a
/// slot). A lease of s rows takes start_s + row_s * s seconds, times a random factor (noise).
/// Faults lengthen this time.
struct SimDevice {
  std::string name;
  int64_t slots = 1;
  Speed speed = {};  ///< speed of one slot; row_s above 0
  /// Standard deviation of the random factor of each lease. The factor is log-normal with mean 1.
  double noise = 0;
  /// Standard deviation of a second random factor of the same distribution. It is drawn once per
  /// run and multiplies the times of all leases of the device.
  double run_noise = 0;
  /// SharePolicy::kStatic: weight of its share, relative to the other devices.
  double ratio = 1;
  /// Maximum number of rows that fit into its memory.
  int64_t max_rows = std::numeric_limits<int64_t>::max();
};

/// Simulated machine.
struct SimNode {
  std::vector<SimDevice> devices;
  double driver_s = 0;  ///< seconds from the beginning of an iteration to its first lease
  /// Seconds to add the result (partial) of one shard to the sum of the node. Results are added one
  /// after another, while the devices compute.
  double add_s = 0;
};

/// Parts of a machine, from which make_sim_node builds a SimNode.
struct NodeParts {
  int64_t cores = 1, gpus = 0;    ///< numbers of CPU cores and of GPUs
  bool cores_compute = true;      ///< false: only GPUs compute
  SimDevice core = {}, gpu = {};  ///< simulated devices: one core, and one GPU
};
/// Builds a node. Each GPU takes one core, which feeds it and computes nothing itself. The other
/// cores together form one device with a slot per core, if cores_compute. Throws UserError if there
/// are fewer cores than GPUs, or if no core and no GPU computes.
SimNode make_sim_node(const NodeParts& parts);

/// Fault of one device that begins at time at_s and lasts for_s seconds.
struct SimFault {
  enum class Kind {
    kThrow,  ///< Every shard that the device finishes throws.
    kHang,   ///< The device makes no progress.
    kSlow,   ///< The device's work takes `factor` times as long.
  };
  size_t node = 0, device = 0;  ///< number of the node, and number of the device in the node
  Kind kind = Kind::kThrow;
  /// Beginning and duration in virtual seconds; for kSlow, the factor of the device's times.
  double at_s = 0, for_s = std::numeric_limits<double>::infinity(), factor = 1;
};
/// Parses "throw", "hang" or "slow". Throws UserError for another name.
SimFault::Kind parse_fault_kind(std::string_view name);

/// Event of a simulation, at virtual time at_s.
struct SimEvent {
  /// kLease     A slot gets a lease.
  /// kDelivery  A slot has computed a shard.
  /// kThrow     A shard threw.
  /// kCount     A shard gets the result that counts; `device` has computed it.
  enum class What { kLease, kDelivery, kThrow, kCount };
  What what;
  double at_s;
  size_t node, device;  ///< number of the node, and number of the device in the node
  /// `slot` is 0 for kCount. `shard` is numbered from 0 in the node's part of the iteration. For
  /// kLease it is the first shard of the lease.
  int64_t slot, shard;
};

/// Work of one device in a simulated run.
struct SimDeviceUse {
  /// `rows` is the number of rows of the shards for which the device's result counted. `leases` is
  /// the number of leases that it finished.
  int64_t rows = 0, leases = 0;
  double busy_s = 0;  ///< seconds spent on finished leases, summed over slots
  /// Reason why the Scheduler stopped giving shards to the device; empty if it did not stop.
  std::string left_out = {};
};

/// Simulation of one node: runs its Scheduler and devices in virtual time. A slot computes its
/// lease shard by shard and delivers each, as a thread of the Runtime does. Slots without work ask
/// for a lease again after each event.
class SimNodeRun {
 public:
  using Observer = std::function<void(const SimEvent&)>;

  /// `index` is the number of this node. Uses only the faults of this node. `observer` is called
  /// with each event, unless it is empty.
  SimNodeRun(size_t index, const SimNode& node, const std::vector<SimFault>& faults,
             const SchedulerOptions& scheduling, uint64_t seed, Observer observer = {});

  /// Simulates one iteration. `shard_rows` holds the number of rows of each shard. The iteration
  /// begins at begin_s, which must not precede the end of the previous one. Returns the virtual
  /// time at which all results are added up.
  ///
  /// Throws DevicesLost if the Scheduler has no device left; now_s() is then the time of the loss.
  /// Throws UserError if a shard threw max_attempts times, which ends the job. Throws InternalError
  /// if a shard does not count exactly once.
  double iterate(const std::vector<int64_t>& shard_rows, double begin_s);

  /// Returns the current virtual time.
  double now_s() const { return now_s_; }
  /// Returns the number of events simulated so far.
  int64_t events() const { return events_; }
  /// Returns the work of each device so far.
  const std::vector<SimDeviceUse>& uses() const { return uses_; }

 private:
  /// Slot of a device, with the lease that it works on.
  struct Slot {
    size_t device;
    int64_t slot;
    bool busy = false;
    Lease lease = {};
    int64_t next_shard = 0;
    double since_s = 0, factor = 1;  ///< beginning of the lease, and random factor of its time
  };
  /// End of a slot's work on a shard.
  struct Arrival {
    double at_s;
    int64_t order;  ///< number of the arrival; orders arrivals at the same time
    size_t slot;    ///< index into slots_
    bool operator>(const Arrival& other) const {
      return at_s != other.at_s ? at_s > other.at_s : order > other.order;
    }
  };

  void ask(Slot& slot);
  void ask_all();
  void compute_next(Slot& slot, double from_s, bool first);
  double finish_s(size_t device, double from_s, double work_s) const;
  bool throws_at(size_t device, double at_s) const;
  void arrive(const Arrival& arrival);
  void count();
  void note(SimEvent::What what, const Slot& slot, int64_t shard) const;

  size_t index_;
  const SimNode& node_;
  std::vector<std::vector<SimFault>> faults_;  ///< faults of each device
  uint64_t seed_;
  Observer observer_;
  Scheduler scheduler_;
  std::vector<Slot> slots_;
  std::vector<double> run_factor_;  ///< random factor of each device (SimDevice::run_noise)
  std::vector<SimDeviceUse> uses_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  std::vector<int64_t> shard_rows_;
  std::vector<char> counted_;
  int64_t iteration_ = 0, order_ = 0, events_ = 0;
  /// now_s_: current time. wake_s_: time of the next Scheduler::expire. added_s_: time at which all
  /// results so far are added up.
  double now_s_ = 0, wake_s_ = 0, added_s_ = 0;
};

}  // namespace dovetail::jobs
