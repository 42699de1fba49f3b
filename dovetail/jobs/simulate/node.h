#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <string>
#include <vector>

#include "dovetail/jobs/scheduler.h"

namespace dovetail::jobs {

/// Simulated device. A lease of s rows takes a slot start_s + row_s * s seconds, times a noise
/// factor. Faults add to this time.
struct SimDevice {
  std::string name;
  int64_t slots = 1;
  Speed speed = {};  ///< speed of one slot; row_s above 0
  double noise = 0;  ///< standard deviation of a lease's time over its mean; log-normal
  /// Standard deviation of a common factor of all its times, drawn per run (seed).
  double run_noise = 0;
  /// SharePolicy::kStatic: weight of its share, relative to the other devices.
  double ratio = 1;
  int64_t max_rows = std::numeric_limits<int64_t>::max();  ///< capacity of its memory
};

struct SimNode {
  std::vector<SimDevice> devices;
  double driver_s = 0;  ///< time of an iteration before its first lease
  /// Time to add the partial of one shard to the sum of the node. Partials are added one after
  /// another, while the devices compute.
  double add_s = 0;
};

/// Builds a node with `cores` cores like `core` and `gpus` GPUs like `gpu`. Each GPU binds a core,
/// which feeds it and computes nothing else. The other cores form one device with a slot each,
/// unless `cores_compute` is false. Throws UserError if there are fewer cores than GPUs, or nothing
/// that computes.
struct NodeParts {
  int64_t cores = 1, gpus = 0;
  bool cores_compute = true;
  SimDevice core = {}, gpu = {};
};
SimNode make_sim_node(const NodeParts& parts);

/// Fault of a device that begins at at_s and lasts for_s seconds.
struct SimFault {
  enum class Kind {
    kThrow,  ///< every shard that it finishes throws
    kHang,   ///< the device makes no progress
    kSlow,   ///< everything takes `factor` times as long
  };
  size_t node = 0, device = 0;
  Kind kind = Kind::kThrow;
  double at_s = 0, for_s = std::numeric_limits<double>::infinity(), factor = 1;
};
/// Parses "throw", "hang" or "slow". Throws UserError for another name.
SimFault::Kind parse_fault_kind(std::string_view name);

struct SimEvent {
  enum class What { kLease, kDelivery, kThrow, kCount };
  What what;
  double at_s;
  size_t node, device;
  /// Shard within the node's iteration: the first one of a kLease. The slot is 0 for kCount.
  int64_t slot, shard;
};

/// Work of a device in a run.
struct SimDeviceUse {
  int64_t rows = 0, leases = 0;  ///< rows whose results counted
  double busy_s = 0;             ///< seconds of all slots, finished leases only
  std::string left_out = {};     ///< reason if it was left out
};

/// Runs the Scheduler of a node and its devices in virtual time. A slot computes its lease shard by
/// shard and delivers each, as a thread of the runtime does. Slots without work ask again after
/// each event.
class SimNodeRun {
 public:
  using Observer = std::function<void(const SimEvent&)>;

  /// Ignores `faults` of other nodes.
  SimNodeRun(size_t index, const SimNode& node, const std::vector<SimFault>& faults,
             const SchedulerOptions& scheduling, uint64_t seed, Observer observer = {});

  /// Runs one iteration over shards with these numbers of rows. It begins at begin_s, which must
  /// not precede the end of the previous iteration. Returns the time when the node has its sum.
  /// Throws DevicesLost, with the time in now_s(). Throws InternalError if a shard does not count
  /// exactly once. Throws UserError if a shard threw max_attempts times, which ends the job.
  double iterate(const std::vector<int64_t>& shard_rows, double begin_s);

  double now_s() const { return now_s_; }
  int64_t events() const { return events_; }
  const std::vector<SimDeviceUse>& uses() const { return uses_; }

 private:
  struct Slot {
    size_t device;
    int64_t slot;
    bool busy = false;
    Lease lease = {};
    int64_t next_shard = 0;
    double since_s = 0, factor = 1;
  };
  struct Arrival {
    double at_s;
    int64_t order;
    size_t slot;  ///< index into slots_
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
  std::vector<std::vector<SimFault>> faults_;  ///< by device
  uint64_t seed_;
  Observer observer_;
  Scheduler scheduler_;
  std::vector<Slot> slots_;
  std::vector<double> run_factor_;  ///< by device
  std::vector<SimDeviceUse> uses_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  std::vector<int64_t> shard_rows_;
  std::vector<char> counted_;
  int64_t iteration_ = 0, order_ = 0, events_ = 0;
  double now_s_ = 0, wake_s_ = 0, added_s_ = 0;
};

}  // namespace dovetail::jobs
