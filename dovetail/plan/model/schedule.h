#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/plan/model/check.h"

namespace dovetail::plan {

/// Treatment of a tensor between two of its uses.
enum class Keep {
  kResident,    ///< stays on the device
  kHost,        ///< offloaded, and fetched in time for the next use
  kAgain,       ///< freed, and recomputed just before the next use
  kAgainEarly,  ///< freed; recomputed when the next use or another recomputation needs it, and kept
                ///< from then on
  kPacked,      ///< compressed, and decompressed before the next use
};
std::string_view name(Keep keep);

/// Interval without uses of a storage, between node `from` (-1: start of the step) and node `to`. A
/// gap that `wraps` belongs to a parameter or to state. It lasts from the last use, over the end of
/// the step, to the first use in the next step. During it, the storage is resident or on the host.
/// If it is on the host, the storage starts and ends the step there.
struct Gap {
  int tensor = -1, from = -1, to = -1;
  bool wraps = false;
  bool covers(int node) const {
    return wraps ? node > from || node < to : node > from && node < to;
  }
};
/// Returns all gaps with at least one node in between, in the order of `from`. Wrapping gaps are
/// included without a node in between if an algorithm can update the tensor in host memory.
std::vector<Gap> find_gaps(const Graph& graph);
/// Returns true if the tensor may be packed by `codec` during `gap`.
bool may_be_packed(const Graph& graph, const Gap& gap, int codec);

struct Decisions {
  std::vector<Keep> gaps;  ///< one per gap
  std::vector<int> codec;  ///< one per gap; read if the gap is packed
  /// One per node. An algorithm that updates tensors in host memory (Algorithm::on_host) needs
  /// their gaps offloaded, see Scheduler::gaps_on_host.
  std::vector<int> algorithms;
  bool operator==(const Decisions&) const = default;
};

/// Actions that result from decisions, and their timeline.
struct Schedule {
  Plan plan;
  Timeline timeline;
  /// timeline.makespan_s plus the slowdown of computing during copies.
  double expected_s = 0;
  /// Per node: maximum memory held while the node, and recomputations for it, run.
  std::vector<int64_t> slot_bytes;
  /// The same if offloads freed their memory at once. Waiting for offloads can reduce memory to
  /// this.
  std::vector<int64_t> settled_bytes;
};
/// Returns true if `op` runs on the compute stream.
inline bool computes(Op op) {
  return op == Op::kCompute || op == Op::kCompress || op == Op::kDecompress;
}
/// Time during which computing overlaps copies to the host (out) or from it (in), summed over all
/// copies.
struct BesideComputing {
  double out_s = 0, in_s = 0;
};
BesideComputing beside_computing(const Plan& plan, const Timeline& timeline);
/// Returns the expected step time of a plan; see Bandwidth::slowdown.
double expected_s(const Graph& graph, const Plan& plan, const Timeline& timeline);

/// Reason why there is no schedule. `node` is the node at which memory did not suffice, and `bytes`
/// is the excess. If `bytes` is 0, something could not be recomputed, since a source has changed or
/// is random.
struct Misfit {
  int node = -1;
  int64_t bytes = 0;
};

/// Budget in bytes that is larger than the memory of any plan.
constexpr int64_t kNoBudget = std::numeric_limits<int64_t>::max() / 4;

/// Turns decisions into a plan. Offloads start as soon as their tensor is computed. Fetches start
/// as late as still hides them if memory allows, else later. Alternatively, fetches start as soon
/// as offloads free memory for them, even if nodes wait for this. The faster of these plans is
/// returned. A node waits for offloads if it does not fit otherwise. A tensor that starts on the
/// host is on the host again when the step ends. Its last copy counts in the makespan. The result
/// has passed `check`.
class Scheduler {
 public:
  /// With `fetches_wait`, fetches may be listed before there is memory for them, and wait for
  /// offloads. Such a plan may need more memory for its addresses (plan/model/layout.h). An address
  /// is reserved from the position at which its action is listed.
  explicit Scheduler(const Graph& graph, bool fetches_wait = true);
  const std::vector<Gap>& gaps() const { return gaps_; }
  /// Returns nullopt if memory exceeds `budget_bytes` or the graph's `host_bytes`. Also returns
  /// nullopt if nodes would run sixteen times or more on average, which chains of recomputed
  /// tensors can cause.
  std::optional<Schedule> schedule(const Decisions& decisions, int64_t budget_bytes,
                                   Misfit* misfit = nullptr) const;
  /// Returns true if the node that computed the tensor of `gap` may run again.
  bool can_be_made_again(int gap) const;
  /// Returns true if `gap` begins at the start of the step and its tensor starts on the host. The
  /// decision for `gap` then has no effect.
  bool is_moot(const Decisions& decisions, int gap) const;
  /// Returns the wrapping gap of a tensor, or -1.
  int wrapped_gap(int tensor) const { return wrapped_gap_[tensor]; }
  const std::vector<int>& gaps_of(int tensor) const { return gaps_of_[tensor]; }
  /// Returns the nodes that mutate the tensor, ascending.
  const std::vector<int>& writers_of(int tensor) const { return writers_[tensor]; }
  /// Returns true if the node at the end of `gap` updates the tensor in host memory, where the gap
  /// leaves it.
  bool is_read_on_host(const Decisions& decisions, int gap) const;
  /// Returns the gaps of `tensor` that must be offloaded so that `node` can update it in host
  /// memory. These are the wrapping gap and the gap before the node, unless the latter begins with
  /// the step.
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
  std::vector<std::vector<int>> gaps_from_;  // gaps by `from` + 1
  std::vector<std::vector<int>> gaps_of_;    // per tensor
  std::vector<int> wrapped_gap_;             // per tensor
  std::vector<int> producer_;                // per tensor; -1: resident from the start
  std::vector<int> last_use_;
  std::vector<bool> stays_;                // resident until the end of the step
  std::vector<std::vector<int>> reads_;    // per node: storages of inputs and mutates, each once
  std::vector<std::vector<int>> writers_;  // per tensor: nodes that mutate it, ascending
};

}  // namespace dovetail::plan
