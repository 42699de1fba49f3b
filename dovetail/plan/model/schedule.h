#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/plan/model/check.h"

/// Decisions about a training step, and their conversion into a plan (plan/model/actions.h). A
/// decision says where a tensor is between two of its uses, or which algorithm a node runs.
namespace dovetail::plan {

/// Decision about a gap: treatment of a tensor between two of its uses.
enum class Keep {
  kResident,  ///< stays on the device
  kHost,      ///< offloaded to the host, and fetched in time for the next use
  kAgain,     ///< freed, and recomputed just before the next use
  /// Freed, and recomputed when it is first needed. This is its next use, or an earlier
  /// recomputation of another tensor that reads it. It then stays on the device until its next use.
  kAgainEarly,
  kPacked,  ///< compressed by a codec, and decompressed before the next use
};
std::string_view name(Keep keep);

/// Interval between two uses of a storage, in which no node uses it. It lies between node `from`
/// (-1: start of the step) and node `to`.
///
/// A gap that `wraps` belongs to a parameter or to state. It lasts from the last use, over the end
/// of the step, to the first use in the next step. Its storage is resident or on the host. A
/// storage that is on the host in this gap starts and ends the step there.
struct Gap {
  int tensor = -1, from = -1, to = -1;
  bool wraps = false;
  /// Returns true if the node runs within the gap.
  bool covers(int node) const {
    return wraps ? node > from || node < to : node > from && node < to;
  }
};
/// Returns all gaps that contain at least one node, in ascending order of `from`. A wrapping gap
/// without a node is included if an algorithm can update its tensor in host memory
/// (Algorithm::on_host).
std::vector<Gap> find_gaps(const Graph& graph);
/// Returns true if the tensor of `gap` may be packed by `codec` during the gap.
bool may_be_packed(const Graph& graph, const Gap& gap, int codec);

/// Decisions about all gaps, in the order of `find_gaps`, and all nodes.
struct Decisions {
  std::vector<Keep> gaps;  ///< one per gap
  std::vector<int> codec;  ///< one per gap: index of the codec, read only for Keep::kPacked
  /// One per node: index of its algorithm. Some algorithms update tensors in host memory
  /// (Algorithm::on_host). They require Keep::kHost for some gaps of these tensors, see
  /// Scheduler::gaps_on_host.
  std::vector<int> algorithms;
  bool operator==(const Decisions&) const = default;
};

/// Plan that carries out decisions, and its simulation by `check`.
struct Schedule {
  Plan plan;
  Timeline timeline;
  /// Expected step time: timeline.makespan_s plus the slowdown of computing during copies
  /// (Bandwidth::slowdown).
  double expected_s = 0;
  /// Per node: maximum device memory from when its missing inputs are fetched, unpacked or
  /// recomputed until the node has run.
  std::vector<int64_t> slot_bytes;
  /// Per node: the same maximum, if each offload is assumed to free its memory as soon as it is
  /// issued. Waiting for offloads can reduce memory to this value.
  std::vector<int64_t> settled_bytes;
};
/// Returns true if `op` runs on the compute stream.
inline bool computes(Op op) {
  return op == Op::kCompute || op == Op::kCompress || op == Op::kDecompress;
}
/// Time during which copies overlap computing, summed over all copies. `out_s` counts copies to the
/// host, `in_s` copies from the host.
struct BesideComputing {
  double out_s = 0, in_s = 0;
};
BesideComputing beside_computing(const Plan& plan, const Timeline& timeline);
/// Returns the expected step time of a plan: timeline.makespan_s plus the slowdown of computing
/// during copies (Bandwidth::slowdown).
double expected_s(const Graph& graph, const Plan& plan, const Timeline& timeline);

/// Reason why decisions cannot be scheduled. If `bytes` is positive, memory exceeds the budget by
/// `bytes` at node `node`. If `bytes` is 0, memory is not the reason. Example: a tensor cannot be
/// recomputed, since an input has changed or the node must run once.
struct Misfit {
  int node = -1;
  int64_t bytes = 0;
};

/// Budget in bytes that no plan exceeds, for scheduling without a limit.
constexpr int64_t kNoBudget = std::numeric_limits<int64_t>::max() / 4;

/// Turns decisions into a plan. Makes several plans and returns the fastest; it has passed `check`.
/// Rules of these plans:
/// - An offload starts as soon as its tensor is computed.
/// - A node waits for offloads to free memory if it does not fit otherwise.
/// - In some plans, a fetch (copy back to the device) starts as late as it can without delaying the
///   reader. If there is no memory for the fetch at that time, it starts later and delays the
///   reader.
/// - In other plans, a fetch starts as soon as offloads free memory for it, even if nodes must
///   wait.
/// - A tensor that starts on the host is on the host again when the step ends. The copy that puts
///   it there counts in the makespan.
class Scheduler {
 public:
  /// If `fetches_wait`, a plan may list a fetch before there is memory for it. The fetch then waits
  /// for offloads. An address is reserved from the fetch's position in the list, not from its
  /// start. Such a plan may therefore need more memory once tensors get addresses
  /// (plan/model/layout.h).
  explicit Scheduler(const Graph& graph, bool fetches_wait = true);
  /// Returns all gaps, as `find_gaps` does. Other functions refer to a gap by its index here.
  const std::vector<Gap>& gaps() const { return gaps_; }
  /// Makes a plan from decisions. Returns nullopt if
  /// - memory exceeds `budget_bytes`,
  /// - host memory exceeds the graph's `host_bytes`,
  /// - a recomputation is impossible,
  /// - nodes would run more than sixteen times on average, due to chains of recomputed tensors.
  ///
  /// Sets `misfit` in all these cases except excess host memory.
  std::optional<Schedule> schedule(const Decisions& decisions, int64_t budget_bytes,
                                   Misfit* misfit = nullptr) const;
  /// Returns true if the tensor of `gap` can be recomputed when the gap ends:
  /// - The node that computes the tensor may run again (GraphNode::runs_once).
  /// - No node changes the tensor in place.
  /// - Before the end of the gap, no node changes another output of the node that computes the
  ///   tensor.
  bool can_be_recomputed(int gap) const;
  /// Returns true if `gap` begins at the start of the step and the decisions start its tensor on
  /// the host. The decision for `gap` then has no effect: the tensor's wrapping gap decides.
  bool is_moot(const Decisions& decisions, int gap) const;
  /// Returns the index of the tensor's wrapping gap, or -1 if it has none.
  int wrapped_gap(int tensor) const { return wrapped_gap_[tensor]; }
  /// Returns the indices of the tensor's gaps.
  const std::vector<int>& gaps_of(int tensor) const { return gaps_of_[tensor]; }
  /// Returns the nodes that change the tensor in place, ascending.
  const std::vector<int>& writers_of(int tensor) const { return writers_[tensor]; }
  /// Returns true if the node at the end of `gap` updates the gap's tensor in host memory, by the
  /// algorithm in `decisions`. The tensor is then not fetched.
  bool is_read_on_host(const Decisions& decisions, int gap) const;
  /// Returns the gaps of `tensor` whose decision must be Keep::kHost so that `node` can update it
  /// in host memory. These are the wrapping gap, and the gap that ends at the node. The latter is
  /// omitted if it begins at the start of the step.
  std::vector<int> gaps_on_host(int node, int tensor) const;

 private:
  enum class Order { kLastFirst, kFirstFirst };
  std::vector<int> times_of_fetches(const Decisions& decisions, const std::vector<int>& needed_at,
                                    std::vector<int64_t> held, int64_t budget_bytes,
                                    Order order) const;

  friend class Walk;
  friend class JointProgram;
  const Graph& graph_;
  const bool fetches_wait_;
  const Graph unlimited_;  // copy of the graph without a budget
  std::vector<Gap> gaps_;
  std::vector<std::vector<int>> gaps_from_;  // gap indices by `from` + 1
  std::vector<std::vector<int>> gaps_of_;    // per tensor
  std::vector<int> wrapped_gap_;             // per tensor
  std::vector<int> producer_;  // per tensor: node that computes it; -1: resident from the start
  std::vector<int> last_use_;  // per tensor: last node that uses it
  std::vector<bool> stays_;    // per tensor: true if it is on the device when the step ends
  std::vector<std::vector<int>> reads_;    // per node: storages of inputs and mutates, each once
  std::vector<std::vector<int>> writers_;  // per tensor: nodes that mutate it, ascending
};

}  // namespace dovetail::plan
