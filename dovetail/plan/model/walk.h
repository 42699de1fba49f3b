#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "dovetail/plan/model/schedule.h"

namespace dovetail::plan {

/// Bytes held over time, as far as is known.
class Level {
 public:
  void add(double time_s, int64_t bytes);
  /// The most from `start_s` on, with `bytes` more from then and `until_end` more before `end_s`.
  int64_t most(double start_s, double end_s, int64_t bytes, int64_t until_end) const;
  /// Changes before `time_s` become one.
  void forget_before(double time_s);

 private:
  std::map<int64_t, int64_t> changes_;  // by picoseconds
};

/// One pass over the nodes of a step by a scheduler's decisions, which issues actions and keeps the
/// same clocks as `check`. What it is given must outlive it.
class Walk {
 public:
  /// `fetch_at`: of each gap the node before which its fetch is issued at the earliest; a fetch in
  /// advance that does not fit then waits for copies that leave, if it is `patient`, else until
  /// before the next node.
  Walk(const Scheduler& scheduler, const Decisions& decisions, const std::vector<int>& fetch_at,
       int64_t budget_bytes, bool patient = false);

  /// False with misfit() where it does not work out.
  bool run();
  Schedule& schedule() { return schedule_; }
  const Misfit& misfit() const { return misfit_; }
  /// Of each gap the first node for which its tensor had to be fetched: that at its end, or one
  /// before which something that is made from it ran again.
  const std::vector<int>& needed_at() const { return needed_at_; }

 private:
  struct Now {
    bool resident = false, on_host = false, packed = false;
    bool exact = true, host_exact = true,
         packed_exact = true;                // none of its bits went through a lossy codec
    bool coded = false, host_coded = false;  // through any
    double ready_s = 0, last_s = 0;
    double host_ready_s = 0, host_last_s = 0, packed_ready_s = 0;
    int codec = -1;
    int offload = -1;  // the action, until its end is certain
  };

  int64_t bytes_of(int t) const { return graph_.tensors[t].bytes; }
  void charge(double time_s, int64_t bytes);
  bool fail(int64_t bytes);
  int issue(Action action, double end_s);
  /// The start, delayed past copies to the host until the bytes fit; adds the waits. False: they
  /// never do.
  bool fit(double& start_s, double duration_s, int64_t bytes, int64_t until_end,
           std::vector<int>& waits);
  bool compute(int n);
  double copy_start(double stream_free_s, double ready_s) const;
  void offload(int t);
  /// False where it does not fit: fatal only if `must`.
  bool fetch(int t, bool must);
  void free(int t);
  bool compress(int t, int codec);
  bool decompress(int t);
  void free_packed(int t);
  bool is_on_host(int node, int t) const;
  bool find_on_host(int t);
  /// Make `t` resident for node `reader`, which reads it as it was before that node first ran.
  bool bring(int t, int reader);
  bool make_again(int t);
  /// Whether a tensor that was brought for another's sake stays.
  bool stays_once_made(int t) const;
  void fetch_early();
  void drop_copies(int t);
  /// Once a tensor has its value, the copy to the host can begin, if it will go there before it
  /// changes.
  void offload_if_it_leaves(int t, int made_by);
  bool leave(int gap);
  bool leave_after_use();

  const Scheduler& s_;
  const Graph& graph_;
  const Decisions& decisions_;
  const std::vector<int>& fetch_at_;
  std::vector<std::pair<int, int>> to_fetch_;  // node from which on, and gap
  size_t fetched_ = 0;                         // of these: waiting_ has been told
  size_t runs_ = 0;
  const int64_t budget_;
  const bool patient_;
  std::vector<Now> now_;
  std::vector<int> gap_of_;   // of each tensor: the gap that it is in, away from the device
  std::vector<int> version_;  // of each tensor: 1 + the node that wrote it last, 0: none
  std::set<std::pair<int, int>>
      waiting_;               // to be fetched from now on: the end of the gap, and the tensor
  std::vector<int> leaving_;  // offloads whose tensors are freed when they end
  std::vector<int> needed_at_;
  std::vector<double> ends_;
  double compute_free_s_ = 0, to_host_free_s_ = 0, to_device_free_s_ = 0;
  Level level_;
  int64_t held_ = 0;  // when all that leaves has left
  Schedule schedule_;
  Misfit misfit_;
  int at_ = -1;
};

}  // namespace dovetail::plan
