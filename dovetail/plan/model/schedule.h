#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/plan/model/check.h"

namespace dovetail::plan {

/// What becomes of a tensor between two of its uses.
enum class Keep {
  kResident,    ///< it stays
  kHost,        ///< offloaded, and fetched in time for the next use
  kAgain,       ///< freed, and made again just before the next use
  kAgainEarly,  ///< freed, and made again when anything else that is made again needs it, from then
                ///< on it stays
  kPacked,      ///< compressed, and decompressed before the next use
};
std::string_view name(Keep keep);

/// A storage that no node uses between node `from` (-1: the start of the step) and node `to`. One
/// that `wraps`, of a parameter or of state, goes from its last use over the end of the step to its
/// first use in the next one: it is resident, or on the host, where the storage then starts and
/// ends the step.
struct Gap {
  int tensor = -1, from = -1, to = -1;
  bool wraps = false;
  bool covers(int node) const {
    return wraps ? node > from || node < to : node > from && node < to;
  }
};
/// All of them with at least one node in between, in the order of `from`; also those that wrap, of
/// what an algorithm may find on the host.
std::vector<Gap> find_gaps(const Graph& graph);
/// Whether a gap may be spent in this packed form.
bool may_be_packed(const Graph& graph, const Gap& gap, int codec);

struct Decisions {
  std::vector<Keep> gaps;  ///< of each gap
  std::vector<int> codec;  ///< of each gap that is packed
  /// Of each node. One that finds tensors on the host goes with their gaps
  /// (Scheduler::gaps_on_host) spent there.
  std::vector<int> algorithms;
  bool operator==(const Decisions&) const = default;
};

/// The actions that decisions come to, and how they run.
struct Schedule {
  Plan plan;
  Timeline timeline;
  double expected_s =
      0;  ///< timeline.makespan_s, and what computing falls behind during its copies
  std::vector<int64_t>
      slot_bytes;  ///< the most memory held while each node, and what is made again for it, runs
  std::vector<int64_t>
      settled_bytes;  ///< the same if copies that leave had left at once: what waiting can come to
};
/// Whether it is done on the compute stream.
inline bool computes(Op op) {
  return op == Op::kCompute || op == Op::kCompress || op == Op::kDecompress;
}
/// How long something is computed while a copy to the host (out) or from it (in) is under way: the
/// sums over all copies.
struct BesideComputing {
  double out_s = 0, in_s = 0;
};
BesideComputing beside_computing(const Plan& plan, const Timeline& timeline);
/// What a step is expected to take by a plan: see Bandwidth::slowdown.
double expected_s(const Graph& graph, const Plan& plan, const Timeline& timeline);

/// Why there is none: the node at which memory did not suffice, and by how much; 0 bytes: something
/// could not be made again, because what it is made from has changed or was drawn at random.
struct Misfit {
  int node = -1;
  int64_t bytes = 0;
};

/// Budget in bytes that no plan reaches.
constexpr int64_t kNoBudget = std::numeric_limits<int64_t>::max() / 4;

/// Copies start as soon as their tensor is there. Fetches start as late as hides them where memory
/// allows that, else later; or, if that is the faster plan, as soon as copies that leave make room
/// for them, also while nodes wait for it. A node waits for copies that leave where it would not
/// fit otherwise. What starts on the host is back there when the step ends: its last copy counts in
/// the makespan. The result has passed `check`.
class Scheduler {
 public:
  /// `fetches_wait`: fetches may be listed before there is memory for them, and wait for copies
  /// that leave. Such a plan may need more memory for its places (plan/model/layout.h), which are
  /// held from where an action is listed.
  explicit Scheduler(const Graph& graph, bool fetches_wait = true);
  const std::vector<Gap>& gaps() const { return gaps_; }
  /// Nothing if memory exceeds `budget_bytes` or the graph's `host_bytes`. Nothing either if nodes
  /// would run sixteen times or more on average, which chains of recomputed tensors can cause.
  std::optional<Schedule> schedule(const Decisions& decisions, int64_t budget_bytes,
                                   Misfit* misfit = nullptr) const;
  /// Whether the node that made the tensor may run again.
  bool can_be_made_again(int gap) const;
  /// Whether nothing is left to decide of a gap from the start of the step: its tensor starts on
  /// the host.
  bool is_moot(const Decisions& decisions, int gap) const;
  /// The gap of a tensor that wraps, or -1.
  int wrapped_gap(int tensor) const { return wrapped_gap_[tensor]; }
  const std::vector<int>& gaps_of(int tensor) const { return gaps_of_[tensor]; }
  /// Nodes that mutate it, ascending.
  const std::vector<int>& writers_of(int tensor) const { return writers_[tensor]; }
  /// Whether the reader at a gap's end finds its tensor on the host, where the gap leaves it.
  bool is_read_on_host(const Decisions& decisions, int gap) const;
  /// The gaps of a tensor that have to be spent on the host for a node to find it there: the one
  /// before the node, unless the step begins with it, and the one that wraps.
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
  const Graph unlimited_;  // without a budget
  std::vector<Gap> gaps_;
  std::vector<std::vector<int>> gaps_from_;  // by node + 1
  std::vector<std::vector<int>> gaps_of_;    // of each tensor
  std::vector<int> wrapped_gap_;             // of each tensor
  std::vector<int> producer_;                // of each tensor; -1: it is there from the start
  std::vector<int> last_use_;
  std::vector<bool> stays_;                // to the end of the step
  std::vector<std::vector<int>> reads_;    // storages of each node's inputs and mutates, each once
  std::vector<std::vector<int>> writers_;  // of each tensor: nodes that mutate it, ascending
};

}  // namespace dovetail::plan
