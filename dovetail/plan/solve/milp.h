#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace dovetail::plan {

/// Mixed-integer linear program: minimise `offset + cost * x`, subject to bounds on columns
/// (variables) and rows (linear conditions). Each bound may be infinite.
///
/// A solution may violate bounds, rows and integrality by kMilpTolerance, in the program's own
/// units. The solver also stops if the absolute gap between objective and bound is below
/// kMilpTolerance. Choose units in which this tolerance is negligible, for example milliseconds and
/// megabytes rather than seconds and bytes.
struct LinearProgram {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  /// Adds a column and returns its number, from 0.
  int add_column(double cost, double lower, double upper, bool integer);
  /// Adds the row lower <= sum of value * x <= upper over the entries {column, value}. Entries of
  /// the same column are added up. Returns the row's number, from 0.
  int add_row(double lower, double upper, std::vector<std::pair<int, double>> entries);

  int columns() const { return static_cast<int>(cost.size()); }
  int rows() const { return static_cast<int>(row_lower.size()); }
  /// Returns the objective for one value per column.
  double objective(const std::vector<double>& values) const;
  /// Returns the largest violation of a bound, a row or integrality by one value per column; 0 if
  /// there is none.
  double violation(const std::vector<double>& values) const;

  double offset = 0;
  /// Feasible point from which the solver starts, one value per column.
  std::optional<std::vector<double>> start = {};

  std::vector<double> cost, lower, upper;    // per column
  std::vector<int> integer;                  // per column: 1 if it must be an integer, else 0
  std::vector<double> row_lower, row_upper;  // per row
  // rows() + 1 positions. Row r has the entries row_start[r] to row_start[r + 1] - 1 of `index`
  // (columns) and `value` (coefficients).
  std::vector<int> row_start = {0};
  std::vector<int> index;
  std::vector<double> value;
};

/// Feasibility tolerance of HiGHS for integer programs, and the absolute gap at which it stops.
constexpr double kMilpTolerance = 1e-6;

/// Options of `solve_milp`.
struct MilpOptions {
  double time_limit_s = 60;
  /// The search ends at this gap: (objective - bound) / |objective|.
  double relative_gap = 0.01;
  /// Solve the linear relaxation, in which integer columns may be fractional.
  bool relax = false;
  int threads = 2;  ///< maximum threads of the solver
  /// Maximum objective of a solution, added as a row of the program.
  std::optional<double> cutoff = {};
  /// Path of the solver program; empty: bin/dovetail-milp next to the lib/ folder of this library.
  std::filesystem::path program = {};
};

/// Result of `solve_milp`.
struct MilpResult {
  enum Status {
    kOptimal,     ///< a solution within `relative_gap` was found
    kFeasible,    ///< the time is over; `values` is the best solution found so far
    kInfeasible,  ///< no solution exists, or none within the cutoff
    kNoSolution,  ///< the time is over, and no solution was found
  };
  Status status = kNoSolution;
  std::vector<double> values;                   ///< one per column; empty without a solution
  double objective = LinearProgram::kInfinity;  ///< objective of `values`
  /// Proven lower bound on the objective of every solution.
  double bound = -LinearProgram::kInfinity;
  double gap = LinearProgram::kInfinity;  ///< (objective - bound) / |objective|
  double seconds = 0;                     ///< wall-clock time of the call
  int64_t nodes = 0;                      ///< nodes of the search tree
};

/// Solves `program` with HiGHS (Huangfu and Hall, 2018), by its branch and cut. HiGHS runs in a
/// child process, `dovetail-milp`. This enforces the time limit, and turns a crash of the solver
/// into an error here.
///
/// The child sends each better solution, and its proven bound, as soon as it has them. The child
/// stops by itself at `time_limit_s`. It is killed if it still runs after another 10 % and 2 s. The
/// result is then the best solution that it has sent.
///
/// The search begins at `start`. Unless `start` exceeds the cutoff, the result is never worse than
/// `start`, however short the time. A linear relaxation uses `start` only for this guarantee. The
/// child dies with the calling thread and prints nothing. May be called from several threads at
/// once.
///
/// Throws UserError if the child's program or its libraries are missing. Throws InternalError if
/// the child dies by itself, `start` is infeasible or the objective is unbounded.
MilpResult solve_milp(const LinearProgram& program, const MilpOptions& options = {});

}  // namespace dovetail::plan
