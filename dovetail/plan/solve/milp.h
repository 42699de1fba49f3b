#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace dovetail::plan {

/// A mixed-integer linear program: minimise `offset` + cost x over column and row bounds; each
/// bound may be infinite.
///
/// Bounds, rows and integrality hold to kMilpTolerance, in the program's own units, and a gap below
/// that counts as closed: choose units in which it is small, milliseconds and megabytes rather than
/// seconds and bytes.
struct LinearProgram {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  /// Returns the column's number, from 0.
  int add_column(double cost, double lower, double upper, bool integer);
  /// lower <= the sum of value x over the entries {column, value} <= upper; entries of one column
  /// are added up. Returns the row's number, from 0.
  int add_row(double lower, double upper, std::vector<std::pair<int, double>> entries);

  int columns() const { return static_cast<int>(cost.size()); }
  int rows() const { return static_cast<int>(row_lower.size()); }
  /// Of a value for each column.
  double objective(const std::vector<double>& values) const;
  /// How far the values lie outside the bound or row that they break most, or from an integer where
  /// one is asked for; 0 if feasible.
  double violation(const std::vector<double>& values) const;

  double offset = 0;
  std::optional<std::vector<double>> start =
      {};  ///< a feasible point, a value for each column, to begin from

  std::vector<double> cost, lower, upper;  // of columns
  std::vector<int> integer;                // of columns: 1 or 0
  std::vector<double> row_lower, row_upper;
  std::vector<int> row_start = {0};  // rows() + 1 places in `index` and `value`
  std::vector<int> index;
  std::vector<double> value;
};

/// HiGHS's feasibility tolerance of integer programs, and the absolute gap at which it stops.
constexpr double kMilpTolerance = 1e-6;

struct MilpOptions {
  double time_limit_s = 60;
  double relative_gap = 0.01;  ///< at which the search ends: (objective - bound) / |objective|
  bool relax = false;          ///< the linear relaxation: every column may be fractional
  int threads = 2;             ///< of the solver, at most
  std::optional<double> cutoff =
      {};  ///< solutions of a larger objective do not count; a row of the program
  std::filesystem::path program =
      {};  ///< the solver's program; empty: bin/dovetail-milp beside our lib/
};

struct MilpResult {
  enum Status {
    kOptimal,     ///< the gap is reached
    kFeasible,    ///< the time is over, `values` are the best solution found
    kInfeasible,  ///< there is no solution, or none below the cutoff
    kNoSolution,  ///< the time is over and none was found
  };
  Status status = kNoSolution;
  std::vector<double> values;                   ///< of each column; empty without a solution
  double objective = LinearProgram::kInfinity;  ///< of `values`
  double bound = -LinearProgram::kInfinity;     ///< proven: no solution is below it
  double gap = LinearProgram::kInfinity;        ///< (objective - bound) / |objective|
  double seconds = 0;                           ///< of the call, by the clock on the wall
  int64_t nodes = 0;                            ///< of the search tree
};

/// Solves `program` by HiGHS (Huangfu and Hall, 2018; its branch and cut) in a process of its own,
/// `dovetail-milp`, so that the time limit is hard and a crash of the solver is an error here: the
/// child sends each better solution and its bound as it finds them, stops by itself at
/// `time_limit_s`, and is killed if it has not done so after another 10 % and 2 s; then the best
/// solution that it had sent is the result. A start is where the search begins and the least that a
/// result has, however short the time, unless it is above the cutoff; in a relaxation it is only
/// the latter. The child dies with the calling thread, and prints nothing. May be called from
/// several threads at once. Throws UserError if the child's program is missing or lacks its
/// libraries, InternalError if it dies by itself, if the start is no feasible point or if the
/// program has no least value.
MilpResult solve_milp(const LinearProgram& program, const MilpOptions& options = {});

}  // namespace dovetail::plan
