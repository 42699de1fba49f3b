#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "dovetail/plan/solve/milp.h"
#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {

/// The 0-1 program of a step: decisions of every gap in the way of the budget and of every node's
/// algorithm, chosen together (the joint model of MO-SOS; STR and the like are the same model with
/// techniques switched off).
///
/// Columns, in stages, one a node: binaries of what becomes of a gap; of the stage in which its
/// fetch starts; of the stage by which its offload has ended; of nodes that run again at a stage;
/// of each node's algorithm. And the clocks: where a stage begins, where its node starts, where
/// each offload ends. A gap that wraps is two: of the stages before its tensor's first use, with
/// the fetch, and of those after its last, with the offload if the step wrote it; a tensor that
/// starts on the host needs no other copy of what it then is.
///
/// Every row is a condition that the schedule of any decisions meets: memory at the start of each
/// node, of each run again and around each codec; what is run again finds its inputs; the streams
/// do not do two copies at once. So the program is a relaxation: point() of a schedule is feasible,
/// and no schedule is expected to take less (expected_s) than the least objective. Random schedules
/// bear that out, and do not prove it. It is not the scheduler itself, which may need longer for
/// the same decisions. In large steps it is looser still: what is made again finds for nothing what
/// it depends on through more than a few others, and the smallest storages, together less than a
/// thousandth of the budget, take no memory between their uses.
class JointProgram {
 public:
  /// Only schedules of at most `longest_s` count. `scheduler` must outlive this and be of `graph`.
  JointProgram(const Graph& graph, const Scheduler& scheduler, const SolveOptions& options,
               double longest_s);

  LinearProgram& program() { return program_; }
  const LinearProgram& program() const { return program_; }
  /// Seconds of an objective.
  double seconds(double objective) const { return objective * unit_s_; }
  double objective(double seconds) const { return seconds / unit_s_; }

  /// Whether a gap covers a stage at which not everything fits, or wraps and is of use to others of
  /// its tensor; else it stays resident here.
  bool moves(int gap) const { return columns_[gap].moves; }
  Decisions decisions(const std::vector<double>& values) const;
  /// The values that a schedule has in the program; feasible if what does not move here is resident
  /// there.
  std::vector<double> point(const Decisions& decisions, const Schedule& schedule) const;
  /// From now on these decisions are not a solution.
  void exclude(const Decisions& decisions);

 private:
  using Entries = std::vector<std::pair<int, double>>;
  struct Slot {
    int first, last, column;  // stages; memory is charged from the last, time counts from the first
  };
  struct GapColumns {
    bool moves = false;
    int keep = -1, host = -1, again = -1, job = -1;  // job: index of the offload, or none
    std::vector<int> packed;                         // of each codec, or -1
    std::vector<Slot> fetches;                       // the latest first
    std::map<int, int> ended, again_early, fetch_aside, unpack_aside;  // by stage
  };
  struct Job {  // a copy to the host of one version of a storage
    int tensor, made_by, column, end;
    bool optional;  // no copy if the tensor starts on the host, or was changed there
    std::vector<int> gaps;
  };
  /// Columns and values of a stage's memory, and what there is of it without them.
  struct Level {
    int64_t bytes = 0;
    Entries entries;
  };

  static constexpr double kUnits = 100;  // of the longest schedule, and of the budget

  int binary() { return program_.add_column(0, 0, 1, true); }
  int clock(double lower_s, double upper_s) {
    return program_.add_column(0, lower_s / unit_s_, upper_s / unit_s_, false);
  }
  double time(double seconds) const { return seconds / unit_s_; }
  double mass(double bytes) const { return bytes / unit_bytes_; }
  double bytes(int tensor) const { return static_cast<double>(graph_.tensors[tensor].bytes); }
  double to_host_s(int tensor) const { return bytes(tensor) / graph_.bandwidth.to_host; }
  double to_device_s(int tensor) const { return bytes(tensor) / graph_.bandwidth.to_device; }
  bool covers(int gap, int stage) const { return gaps_[gap].covers(stage); }
  /// Of a gap's stages the first at which its tensor can be fetched for its end.
  int first_fetch(int gap) const { return gaps_[gap].wraps ? 0 : gaps_[gap].from + 1; }
  /// Whether a tensor may start on the host: then the version that it starts with need not be
  /// copied there.
  int host_at_start(int tensor) const {
    const int gap = scheduler_.wrapped_gap(tensor);
    return gap < 0 ? -1 : columns_[gap].host;
  }
  int gap_at(int tensor, int stage) const;
  /// The columns of a node's algorithms that find a tensor on the host.
  Entries on_host(int node, int tensor) const;
  void at_least(Entries entries, double lower) {
    program_.add_row(lower, LinearProgram::kInfinity, std::move(entries));
  }
  void at_most(Entries entries, double upper) {
    program_.add_row(-LinearProgram::kInfinity, upper, std::move(entries));
  }

  void find_tight_stages();
  void find_bytes_at_start();
  void leave_out_the_smallest();
  void add_clocks();
  void add_algorithms();
  void add_gaps();
  void add_slots(int gap);
  void add_jobs();
  void add_runs();
  bool may_run(int node, int stage) const;
  bool present(int tensor, int stage) const;
  bool add_run(int node, int stage, int depth);
  void add_choices();
  void add_inputs_of_runs();
  void add_exactness(int node, int stage, int column);
  void add_times();
  void add_fetch_stream();
  void add_offload_stream();
  void add_falling_behind();
  int ended_by(const Job& job, int stage) const;
  void add_offload_load();
  Level level_at(int stage, int leaving) const;
  Level level_before(int stage, size_t brought, const std::vector<int>& not_counted) const;
  void add_resident(Level& out, int gap, int before, int leaving) const;
  double packed_mass(int gap, int codec) const;
  void add_budget(Level level);
  void add_memory();
  void add_memory_of_node(int node, Level level);
  void add_memory_of_run(int node, int stage, int column);
  void add_memory_of_codecs(int gap);
  void add_algorithm_time(Entries& out, int node, double sign) const;

  const Graph& graph_;
  const Scheduler& scheduler_;
  const std::vector<Gap>& gaps_;
  const SolveOptions& options_;
  const double longest_s_, unit_s_, unit_bytes_;
  LinearProgram program_;
  int stages_ = 0, end_ = -1;
  std::vector<int> beside_;  // seconds of copies out and in beside computing, where these cost any
  Entries computing_;        // of all that is computed, less its seconds
  double computing_s_ = 0;   // of what is computed in any case, which has no column
  std::vector<double> soonest_s_;    // of each stage, by the fastest algorithms
  std::vector<bool> left_out_;       // of each gap: its tensor takes no memory in it
  std::vector<int64_t> kept_bytes_;  // of each stage, if nothing leaves, without workspace
  int64_t bytes_at_start_ = 0;       // if nothing starts on the host
  std::vector<bool> tight_;          // if the largest workspaces do not fit then
  std::vector<int> begin_, start_;   // clocks of each stage
  std::vector<std::vector<int>>
      choice_;             // of each node: a column an algorithm, or -1; empty: one only
  std::vector<int> only_;  // the algorithm of a node without choice
  std::vector<GapColumns> columns_;
  std::vector<Job> jobs_;
  std::map<std::pair<int, int>, int> runs_;   // stage, node: the node runs again
  std::map<std::pair<int, int>, int> run_s_;  // its seconds, where there is a choice
  std::set<std::pair<int, int>> free_runs_;   // the same without a column: at no cost
};

}  // namespace dovetail::plan
