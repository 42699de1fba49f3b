#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "dovetail/plan/model/schedule.h"

namespace dovetail::plan {

/// Bytes held over time, as far as they are known.
class Level {
 public:
  void add(double time_s, int64_t bytes);
  /// Returns the maximum from `start_s` on, with `bytes` added from then on and `until_end` added
  /// before `end_s`.
  int64_t most(double start_s, double end_s, int64_t bytes, int64_t until_end) const;
  /// Merges all changes before `time_s` into one.
  void forget_before(double time_s);

 private:
  std::map<int64_t, int64_t> changes_;  // key: picoseconds
};

/// Single pass over the nodes of a step, which issues the actions for a scheduler's decisions. It
/// keeps the same clocks as `check`. Arguments must outlive the walk.
class Walk {
 public:
  /// `fetch_at` has, per gap, the first node before which its fetch may be issued. An early fetch
  /// that does not fit waits for offloads if `patient`. Otherwise it is tried again before the next
  /// node.
  Walk(const Scheduler& scheduler, const Decisions& decisions, const std::vector<int>& fetch_at,
       int64_t budget_bytes, bool patient = false);

  /// Returns false, with misfit() set, if the decisions give no schedule.
  bool run();
  Schedule& schedule() { return schedule_; }
  const Misfit& misfit() const { return misfit_; }
  /// Per gap, the first node for which its tensor had to be fetched. This is the node at the gap's
  /// end, or an earlier one that needed a recomputation from the tensor.
  const std::vector<int>& needed_at() const { return needed_at_; }

 private:
  struct Now {
    bool resident = false, on_host = false, packed = false;
    bool exact = true, host_exact = true,
         packed_exact = true;                // true if no bits went through a lossy codec
    bool coded = false, host_coded = false;  // true if bits went through any codec
    double ready_s = 0, last_s = 0;
    double host_ready_s = 0, host_last_s = 0, packed_ready_s = 0;
    int codec = -1;
    int offload = -1;  // action that copies it to the host, if a wait for it may be needed
  };

  int64_t bytes_of(int t) const { return graph_.tensors[t].bytes; }
  void charge(double time_s, int64_t bytes);
  bool fail(int64_t bytes);
  int issue(Action action, double end_s);
  /// Delays the start past offloads until the bytes fit, and adds these offloads to `waits`.
  /// Returns false if they never fit.
  bool fit(double& start_s, double duration_s, int64_t bytes, int64_t until_end,
           std::vector<int>& waits);
  bool compute(int n);
  double copy_start(double stream_free_s, double ready_s) const;
  void offload(int t);
  /// Returns false if the tensor does not fit. This is fatal only if `must` is true.
  bool fetch(int t, bool must);
  void free(int t);
  bool compress(int t, int codec);
  bool decompress(int t);
  void free_packed(int t);
  bool is_on_host(int node, int t) const;
  bool find_on_host(int t);
  /// Makes `t` resident for node `reader`, in the version that the node read in its first run.
  bool bring(int t, int reader);
  bool make_again(int t);
  /// Returns true if a tensor that was brought for a recomputation stays resident.
  bool stays_once_made(int t) const;
  void fetch_early();
  void drop_copies(int t);
  /// Starts the offload of a tensor that has just been computed. This requires a gap that offloads
  /// it before it changes.
  void offload_if_it_leaves(int t, int made_by);
  bool leave(int gap);
  bool leave_after_use();

  const Scheduler& s_;
  const Graph& graph_;
  const Decisions& decisions_;
  const std::vector<int>& fetch_at_;
  std::vector<std::pair<int, int>> to_fetch_;  // earliest node, gap
  size_t fetched_ = 0;                         // entries that are already in waiting_
  size_t runs_ = 0;
  const int64_t budget_;
  const bool patient_;
  std::vector<Now> now_;
  std::vector<int> gap_of_;   // per tensor: the gap that it spends off the device
  std::vector<int> version_;  // per tensor: 1 + the node that wrote it last; 0: not written
  // Fetches that may start: end of the gap, tensor.
  std::set<std::pair<int, int>> waiting_;
  std::vector<int> leaving_;  // offloads whose tensors are freed when they end
  std::vector<int> needed_at_;
  std::vector<double> ends_;
  double compute_free_s_ = 0, to_host_free_s_ = 0, to_device_free_s_ = 0;
  Level level_;
  int64_t held_ = 0;  // bytes held after all offloads have ended
  Schedule schedule_;
  Misfit misfit_;
  int at_ = -1;
};

}  // namespace dovetail::plan
