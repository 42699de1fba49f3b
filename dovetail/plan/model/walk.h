#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "dovetail/plan/model/schedule.h"

namespace dovetail::plan {

/// Device memory over time: the sum of all changes added so far.
class Level {
 public:
  /// Changes the level by `bytes` from `time_s` on.
  void add(double time_s, int64_t bytes);
  /// Returns the maximum level from `start_s` on after two additions: `bytes` from `start_s` on,
  /// and `until_end` bytes from `start_s` to `end_s`. Changes nothing.
  int64_t most(double start_s, double end_s, int64_t bytes, int64_t until_end) const;
  /// Merges all changes before `time_s` into one. After this, `most` must not be called with an
  /// earlier start_s.
  void forget_before(double time_s);

 private:
  std::map<int64_t, int64_t> changes_;  // picoseconds -> change in bytes
};

/// Conversion of decisions into a plan (plan/model/schedule.h). Visits the nodes of a step once, in
/// order, and appends the actions that each of them needs. It computes start and end of each action
/// by the rules of `check`. Constructor arguments must outlive the walk.
class Walk {
 public:
  /// `fetch_at` has one node per gap: the fetch of the gap's tensor may be issued just before this
  /// node or later. `patient` says what happens if there is no memory for the fetch yet. If true,
  /// the fetch is issued and waits for offloads that free memory. If false, the fetch is tried
  /// again before the next node.
  Walk(const Scheduler& scheduler, const Decisions& decisions, const std::vector<int>& fetch_at,
       int64_t budget_bytes, bool patient = false);

  /// Appends all actions to schedule().plan. Returns false, with the reason in misfit(), if the
  /// decisions cannot be carried out.
  bool run();
  Schedule& schedule() { return schedule_; }
  const Misfit& misfit() const { return misfit_; }
  /// Returns, per gap, the first node for which the gap's tensor had to be back on the device. This
  /// is the node at the gap's end, or an earlier one that needed a recomputation from the tensor.
  const std::vector<int>& needed_at() const { return needed_at_; }

 private:
  /// Copies of a tensor at the current point of the walk: on the device, on the host and packed.
  struct Now {
    bool resident = false, on_host = false, packed = false;
    // True if no lossy codec has changed the values of the copy.
    bool exact = true, host_exact = true, packed_exact = true;
    // True if the copy went through any codec.
    bool coded = false, host_coded = false;
    // Times at which a copy is complete (ready) and at which its last reader ends (last).
    double ready_s = 0, last_s = 0;
    double host_ready_s = 0, host_last_s = 0, packed_ready_s = 0;
    int codec = -1;
    // Action that copies the tensor to the host, while a wait for it may be needed; else -1.
    int offload = -1;
  };

  int64_t bytes_of(int t) const { return graph_.tensors[t].bytes; }
  void charge(double time_s, int64_t bytes);
  bool fail(int64_t bytes);
  int issue(Action action, double end_s);
  /// Moves `start_s` to the end of offloads until the bytes fit into the budget, and adds these
  /// offloads to `waits`. Returns false if they never fit.
  bool fit(double& start_s, double duration_s, int64_t bytes, int64_t until_end,
           std::vector<int>& waits);
  bool compute(int n);
  double copy_start(double stream_free_s, double ready_s) const;
  void offload(int t);
  /// Returns false if there is no memory for the tensor. If `must` is true, the walk then fails. If
  /// it is false, the tensor can still be fetched later.
  bool fetch(int t, bool must);
  void free(int t);
  bool compress(int t, int codec);
  bool decompress(int t);
  void free_packed(int t);
  bool is_on_host(int node, int t) const;
  bool find_on_host(int t);
  /// Makes `t` resident for node `reader`, in the version that the node read in its first run.
  /// Returns false if that is impossible.
  bool bring(int t, int reader);
  bool recompute_tensor(int t);
  /// Returns true if a tensor that a recomputation has needed or made stays resident after it.
  bool stays_once_made(int t) const;
  void fetch_early();
  void drop_copies(int t);
  /// Starts the offload of a tensor that node `made_by` has just computed or changed. Does nothing
  /// unless a gap before the next change offloads it.
  void offload_if_it_leaves(int t, int made_by);
  bool leave(int gap);
  bool leave_after_use();

  const Scheduler& s_;
  const Graph& graph_;
  const Decisions& decisions_;
  const std::vector<int>& fetch_at_;
  std::vector<std::pair<int, int>> to_fetch_;  // (earliest node, gap) per fetch, ascending
  size_t fetched_ = 0;                         // entries of to_fetch_ that are already in waiting_
  size_t runs_ = 0;                            // runs of nodes so far
  const int64_t budget_;
  const bool patient_;
  std::vector<Now> now_;
  std::vector<int> gap_of_;   // gap of each tensor that is not on the device now, else -1
  std::vector<int> version_;  // per tensor: 1 + the node that wrote it last; 0: not written
  // Fetches that may start now: (node at the end of the gap, tensor).
  std::set<std::pair<int, int>> waiting_;
  std::vector<int> leaving_;  // offload actions whose end frees device memory
  std::vector<int> needed_at_;
  std::vector<double> ends_;  // end of each action
  double compute_free_s_ = 0, to_host_free_s_ = 0, to_device_free_s_ = 0;
  Level level_;
  int64_t held_ = 0;  // device memory in use after all issued offloads have ended
  Schedule schedule_;
  Misfit misfit_;
  int at_ = -1;  // node that the walk has reached
};

}  // namespace dovetail::plan
