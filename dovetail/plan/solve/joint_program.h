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

/// 0-1 program of a step: the joint model of MO-SOS. It decides every gap (plan/model/schedule.h)
/// in the way of the budget, together with every node's algorithm. STR and similar strategies are
/// the same model with techniques switched off.
///
/// Columns belong to stages, one for each node. Binary columns:
/// - the use of a gap,
/// - the stage in which its fetch starts, and the stage by which its offload has ended,
/// - nodes that run again in a stage,
/// - each node's algorithm.
/// Clock columns are the begin of a stage, the start of its node, and the end of each offload. A
/// gap that wraps has two parts. The first covers the stages before its tensor's first use, with
/// the fetch. The second covers the stages after its last use, with the offload if the step wrote
/// it. A tensor that starts on the host needs no other copy of its first version.
///
/// Every row is a condition that each schedule meets. Memory fits at the start of each node, at
/// each repeated run, and around each codec. A repeated run finds its inputs. A stream does one
/// copy at a time. So the program is a relaxation: point() of a schedule is feasible. No schedule
/// is expected to take less (expected_s) than the minimum objective. Tests with random schedules
/// agree with this; it is not proven. The scheduler may need longer for the same decisions.
///
/// In large steps the program is looser. A recomputation gets its inputs for free if they are more
/// than a few recomputations deep. The smallest storages take no memory between their uses.
/// Together they are below a thousandth of the budget.
class JointProgram {
 public:
  /// Admits only schedules of at most `longest_s`. `scheduler` must belong to `graph` and outlive
  /// this object.
  JointProgram(const Graph& graph, const Scheduler& scheduler, const SolveOptions& options,
               double longest_s);

  LinearProgram& program() { return program_; }
  const LinearProgram& program() const { return program_; }
  /// Seconds of an objective, and back.
  double seconds(double objective) const { return objective * unit_s_; }
  double objective(double seconds) const { return seconds / unit_s_; }

  /// Returns true if the program decides the gap. It then covers a stage at which not everything
  /// fits, or wraps and helps other gaps of its tensor. Any other gap stays resident in the
  /// program.
  bool moves(int gap) const { return columns_[gap].moves; }
  Decisions decisions(const std::vector<double>& values) const;
  /// Column values of a schedule. They are feasible if every gap that the program does not decide
  /// is resident in the schedule.
  std::vector<double> point(const Decisions& decisions, const Schedule& schedule) const;
  /// Excludes these decisions from the solutions.
  void exclude(const Decisions& decisions);

 private:
  using Entries = std::vector<std::pair<int, double>>;
  struct Slot {
    int first, last, column;  // stages; memory counts from `last`, time from `first`
  };
  struct GapColumns {
    bool moves = false;
    int keep = -1, host = -1, again = -1, job = -1;  // job: index of the offload, or -1
    std::vector<int> packed;                         // column of each codec, or -1
    std::vector<Slot> fetches;                       // latest first
    std::map<int, int> ended, again_early, fetch_aside, unpack_aside;  // columns by stage
  };
  struct Job {  // copy of one version of a storage to the host
    int tensor, made_by, column, end;
    bool optional;  // no copy if the tensor starts on the host, or was changed there
    std::vector<int> gaps;
  };
  /// Memory of a stage: constant bytes, and columns with their coefficients.
  struct Level {
    int64_t bytes = 0;
    Entries entries;
  };

  static constexpr double kUnits = 100;  // solver units of the longest schedule, and of the budget

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
  /// First stage of a gap in which its tensor can be fetched for the use at the gap's end.
  int first_fetch(int gap) const { return gaps_[gap].wraps ? 0 : gaps_[gap].from + 1; }
  /// Column for a tensor that starts on the host, or -1 if it may not. The version that it starts
  /// with then needs no copy to the host.
  int host_at_start(int tensor) const {
    const int gap = scheduler_.wrapped_gap(tensor);
    return gap < 0 ? -1 : columns_[gap].host;
  }
  int gap_at(int tensor, int stage) const;
  /// Columns of a node's algorithms that find a tensor on the host.
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
  std::vector<int> beside_;  // seconds of copies out and in during computing, if these cost any
  Entries computing_;       // columns of all computing, with their seconds as negative coefficients
  double computing_s_ = 0;  // seconds of computing that is certain and has no column
  std::vector<double> soonest_s_;    // earliest begin of each stage, with the fastest algorithms
  std::vector<bool> left_out_;       // per gap: its tensor takes no memory in it
  std::vector<int64_t> kept_bytes_;  // per stage, with everything resident, without workspace
  int64_t bytes_at_start_ = 0;       // if nothing starts on the host
  std::vector<bool> tight_;  // per stage: everything resident and the largest workspace do not fit
  std::vector<int> begin_, start_;  // clock columns of each stage
  // Per node: a column for each algorithm, or -1. Empty if there is no choice.
  std::vector<std::vector<int>> choice_;
  std::vector<int> only_;  // algorithm of each node without a choice
  std::vector<GapColumns> columns_;
  std::vector<Job> jobs_;
  std::map<std::pair<int, int>, int> runs_;   // (stage, node): the node runs again
  std::map<std::pair<int, int>, int> run_s_;  // seconds of a repeated run, if its node has a choice
  std::set<std::pair<int, int>> free_runs_;   // repeated runs without a column, at no cost
};

}  // namespace dovetail::plan
