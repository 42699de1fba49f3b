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

/// Integer program that decides a whole step with 0-1 variables: the joint model of MO-SOS, a
/// published planner. It decides
/// - gaps between two uses of a tensor (plan/model/schedule.h), if the budget may require a
///   decision,
/// - every node's algorithm.
///
/// Other published strategies are the same model with techniques switched off. Example: STR has no
/// compression and one algorithm per node.
///
/// The step has one stage per node. A stage begins when the previous one ends, and ends with the
/// first run of its node. Columns are variables of the program, and rows are its conditions. Binary
/// columns:
/// - the decision for a gap,
/// - the stage in which its fetch starts, and the stage by which its offload has ended,
/// - nodes that run again in a stage,
/// - each node's algorithm.
///
/// Clock columns are times: the begin of a stage, the start of its node, and the end of each
/// offload. A gap that wraps around the end of the step has two parts. The first part has the
/// stages before the tensor's first use; its fetch is in this part. The second part has the stages
/// after the tensor's last use. If the step changed the tensor, its offload is in the second part.
/// A tensor that starts on the host needs no offload until the step changes it.
///
/// Every row is a condition that each schedule meets. Examples:
/// - Memory fits at the start of each node and at each repeated run.
/// - Memory fits around each compression and decompression.
/// - A repeated run finds its inputs.
/// - A stream does one copy at a time.
///
/// So the program is a relaxation: point() of a schedule is feasible. The expected time
/// (expected_s) of a schedule is never below the minimum objective. Tests with random schedules
/// agree with this; it is not proven. The scheduler may need longer for the same decisions.
///
/// In large steps the program is looser in two ways:
/// - A recomputation may need further recomputations for its inputs, and so on. Recomputations
///   beyond 16 levels cost nothing; beyond 6 levels in steps of more than 128 nodes.
/// - The smallest storages take no memory between their uses. Together, these storages have less
///   than a thousandth of the budget.
///
/// The program's numbers are in solver units, one for times and one for bytes. 100 units (kUnits)
/// are the seconds `longest_s` of the constructor, and the bytes of the budget.
class JointProgram {
 public:
  /// Builds the program for schedules that take at most `longest_s` seconds. `scheduler` must
  /// belong to `graph` and outlive this object.
  JointProgram(const Graph& graph, const Scheduler& scheduler, const SolveOptions& options,
               double longest_s);

  LinearProgram& program() { return program_; }
  const LinearProgram& program() const { return program_; }
  /// Converts an objective of the program, in solver units, to seconds.
  double seconds(double objective) const { return objective * unit_s_; }
  /// Converts seconds to an objective of the program.
  double objective(double seconds) const { return seconds / unit_s_; }

  /// Returns true if the program decides the gap. If not, the gap stays resident in the program.
  /// The program decides a gap only if
  /// - the gap covers a stage at which not everything fits into memory,
  /// - the gap wraps and another gap of its tensor covers such a stage,
  /// - the gap wraps and not everything fits when the step begins,
  /// - or an algorithm can update the gap's tensor in host memory.
  bool moves(int gap) const { return columns_[gap].moves; }
  /// Returns the decisions that a solution describes. `values` has one value per column.
  Decisions decisions(const std::vector<double>& values) const;
  /// Returns the column values of a schedule. They are feasible if every gap that the program does
  /// not decide is resident in the schedule.
  std::vector<double> point(const Decisions& decisions, const Schedule& schedule) const;
  /// Returns a gap that covers `stage`, is resident in `decisions`, is left out of the program and
  /// may be offloaded. Its storage is the largest such storage. Returns -1 if there is none.
  int left_out_at(int stage, const Decisions& decisions) const;
  /// Adds a row that no solution with these decisions meets.
  void exclude(const Decisions& decisions);

 private:
  using Entries = std::vector<std::pair<int, double>>;
  // Possible start of a fetch: `column` is 1 if the fetch starts in one of the stages [first,
  // last]. Memory counts from stage `last`, time from stage `first`.
  struct Slot {
    int first, last, column;
  };
  // Columns of a gap; -1 or missing if they do not exist.
  struct GapColumns {
    bool moves = false;  // the program decides the gap
    // Columns of Keep::kResident, kHost and kAgain. `job` is the index of the offload in jobs_, or
    // -1.
    int keep = -1, host = -1, again = -1, job = -1;
    std::vector<int> packed;    // per codec: column of Keep::kPacked, or -1
    std::vector<Slot> fetches;  // latest stage first
    // Columns by stage. ended: the offload has ended by the stage. again_early: Keep::kAgainEarly
    // with a recomputation in the stage. fetch_aside: a fetch in the stage for a repeated run.
    // unpack_aside: a decompression in the stage for a repeated run.
    std::map<int, int> ended, again_early, fetch_aside, unpack_aside;
  };
  // Copy of one version of a storage to the host. `made_by` is the node that wrote the version.
  // `column` is 1 if the copy exists; `end` is its clock column.
  struct Job {
    int tensor, made_by, column, end;
    // True if a solution can do without the copy. The tensor may start on the host with this
    // version. Or node `made_by` may write this version in host memory.
    bool optional;
    // Gaps in which the tensor is on the host by this copy.
    std::vector<int> gaps;
  };
  // Memory of a stage: constant bytes plus columns with their coefficients.
  struct Level {
    int64_t bytes = 0;
    Entries entries;
  };

  // Solver units: the program scales times so that `longest_s` is kUnits, and bytes so that the
  // budget is kUnits.
  static constexpr double kUnits = 100;

  int binary() { return program_.add_column(0, 0, 1, true); }
  int clock(double lower_s, double upper_s) {
    return program_.add_column(0, lower_s / unit_s_, upper_s / unit_s_, false);
  }
  double time(double seconds) const { return seconds / unit_s_; }  // in solver units
  double mass(double bytes) const { return bytes / unit_bytes_; }  // in solver units
  double bytes(int tensor) const { return static_cast<double>(graph_.tensors[tensor].bytes); }
  double to_host_s(int tensor) const { return bytes(tensor) / graph_.bandwidth.to_host; }
  double to_device_s(int tensor) const { return bytes(tensor) / graph_.bandwidth.to_device; }
  bool covers(int gap, int stage) const { return gaps_[gap].covers(stage); }
  // First stage of a gap in which its tensor can be fetched for the use at the gap's end.
  int first_fetch(int gap) const { return gaps_[gap].wraps ? 0 : gaps_[gap].from + 1; }
  // Column that is 1 if the tensor starts on the host; -1 if it may not. The version that it starts
  // with then needs no copy to the host.
  int host_at_start(int tensor) const {
    const int gap = scheduler_.wrapped_gap(tensor);
    return gap < 0 ? -1 : columns_[gap].host;
  }
  // Gap of the tensor that covers a stage, or -1.
  int gap_at(int tensor, int stage) const;
  // Columns of those algorithms of `node` that read `tensor` in host memory.
  Entries on_host(int node, int tensor) const;
  // Adds the row: sum of entries >= lower.
  void at_least(Entries entries, double lower) {
    program_.add_row(lower, LinearProgram::kInfinity, std::move(entries));
  }
  // Adds the row: sum of entries <= upper.
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
  void add_slowdown();
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
  int stages_ = 0, end_ = -1;  // number of stages; clock column of the step's end
  // Two columns, if Bandwidth::slowdown is positive: time during which copies to the host, and
  // copies from it, overlap computing.
  std::vector<int> beside_;
  // Columns that add computing time, with their seconds as negative coefficients.
  Entries computing_;
  // Seconds of computing that every solution has.
  double computing_s_ = 0;
  // Earliest begin of each stage: all earlier nodes run once, by their fastest algorithms.
  std::vector<double> soonest_s_;
  // Per gap: true if its tensor counts no memory in it, to keep the program small.
  std::vector<bool> left_out_;
  // Per stage: memory if everything is resident, without the node's workspace.
  std::vector<int64_t> kept_bytes_;
  // Memory at the start of the step if nothing starts on the host.
  int64_t bytes_at_start_ = 0;
  // Per stage: true if everything resident and the largest workspace of the node exceed the budget.
  std::vector<bool> tight_;
  // Per stage: true for the few stages that may need the most memory. A fetch slot that goes on
  // behind such a stage would take time from before it and memory from after it.
  std::vector<bool> peaks_;
  // Clock columns per stage: its begin, and the start of its node.
  std::vector<int> begin_, start_;
  // Per node: a column for each algorithm, or -1. Empty if the program does not choose its
  // algorithm.
  std::vector<std::vector<int>> choice_;
  std::vector<int> only_;            // per node: its algorithm if there is no choice
  std::vector<GapColumns> columns_;  // per gap
  std::vector<Job> jobs_;
  // (stage, node) -> column that is 1 if the node runs again in the stage.
  std::map<std::pair<int, int>, int> runs_;
  // (stage, node) -> column with the duration of that run, if the program chooses the algorithm.
  std::map<std::pair<int, int>, int> run_s_;
  // (stage, node) of repeated runs without a column. They cost nothing in the program.
  std::set<std::pair<int, int>> free_runs_;
};

}  // namespace dovetail::plan
