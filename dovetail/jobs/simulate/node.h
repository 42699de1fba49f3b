#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <string>
#include <vector>

#include "dovetail/jobs/scheduler.h"

namespace dovetail::jobs {

/// A simulated device: a lease of s rows takes a slot start_s + row_s * s seconds, times its noise,
/// longer while faults last.
struct SimDevice {
  std::string name;
  int64_t slots = 1;
  Speed speed = {};      ///< of one slot; row_s above 0
  double noise = 0;      ///< standard deviation of a lease's time over its mean; log-normal
  double run_noise = 0;  ///< that of all its times from one run (seed) to another
  double ratio = 1;      ///< SharePolicy::kStatic: its part, in proportion to the others'
  int64_t max_rows = std::numeric_limits<int64_t>::max();  ///< what its memory holds
};

struct SimNode {
  std::vector<SimDevice> devices;
  double driver_s = 0;  ///< of an iteration, before its first lease
  double add_s = 0;     ///< to add one shard's partial to the sum of the node: one after another,
                        ///< beside the devices
};

/// A node of `cores` like `core` and `gpus` like `gpu`. Every GPU binds a core, which feeds it and
/// computes nothing else; the other cores are one device of as many slots, unless `cores_compute`
/// is false. UserError when there are fewer cores than GPUs, or nothing that computes.
struct NodeParts {
  int64_t cores = 1, gpus = 0;
  bool cores_compute = true;
  SimDevice core = {}, gpu = {};
};
SimNode make_sim_node(const NodeParts& parts);

/// What befalls a device from at_s on, for for_s.
struct SimFault {
  enum class Kind {
    kThrow,  ///< every shard that it would finish throws
    kHang,   ///< nothing goes on
    kSlow,   ///< everything takes `factor` times as long
  };
  size_t node = 0, device = 0;
  Kind kind = Kind::kThrow;
  double at_s = 0, for_s = std::numeric_limits<double>::infinity(), factor = 1;
};
/// "throw", "hang", "slow"; UserError for another name.
SimFault::Kind parse_fault_kind(std::string_view name);

struct SimEvent {
  enum class What { kLease, kDelivery, kThrow, kCount };
  What what;
  double at_s;
  size_t node, device;
  int64_t slot, shard;  ///< of the node's iteration; of a lease the first; slot 0 of kCount
};

/// What a device did in a run.
struct SimDeviceUse {
  int64_t rows = 0, leases = 0;  ///< rows that counted
  double busy_s = 0;             ///< of all slots, finished leases only
  std::string left_out = {};     ///< why, if it was
};

/// The Scheduler of a node and its devices in virtual time. A slot computes its lease shard by
/// shard and delivers each, as a thread of the runtime does; slots without work ask again after
/// everything that happens.
class SimNodeRun {
 public:
  using Observer = std::function<void(const SimEvent&)>;

  /// `faults` of other nodes are passed over.
  SimNodeRun(size_t index, const SimNode& node, const std::vector<SimFault>& faults,
             const SchedulerOptions& scheduling, uint64_t seed, Observer observer = {});

  /// One iteration over shards of so many rows from begin_s on (not before the last one's end):
  /// when the node has its sum. Throws DevicesLost, at now_s(); InternalError where a shard does
  /// not count exactly once; UserError when a shard threw max_attempts times, which ends the job.
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
