#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "dovetail/fit/rows/table_data.h"

namespace dovetail::fit {

/// Method by which fit_principal finds directions.
enum class PrincipalSolver {
  /// kCovariance up to kMostCovariance columns, otherwise kPower.
  kAuto,
  /// One pass over the rows for the covariance matrix, and its eigenvectors (LAPACK).
  kCovariance,
  /// Block power iteration (Rutishauser 1970), with a pass over the rows per iteration. It iterates
  /// on a block of a few more directions than asked for. Each iteration takes the best directions
  /// within the span of the block. The covariance matrix is never formed.
  kPower,
};
/// Parses "auto", "covariance" or "power". Throws UserError for another name.
PrincipalSolver parse_principal_solver(std::string_view name);

/// Maximum number of columns for which kAuto is kCovariance: 32 MB for a matrix.
constexpr int64_t kMostCovariance = 2048;
/// Returns the method that kAuto stands for, and any other `solver` itself.
PrincipalSolver resolved(PrincipalSolver solver, int64_t columns);

/// Options of fit_principal. A principal component is a direction v, a unit vector, with the
/// variance s of the rows along it. C is the covariance matrix of the columns.
struct PrincipalOptions {
  int64_t components = 2;  ///< number of directions to find
  PrincipalSolver solver = PrincipalSolver::kAuto;
  // The following options belong to kPower.
  int64_t iterations = 300;  ///< maximum number of iterations
  /// Stops when |C v - s v| is at most `tolerance` times the largest s, for each direction v.
  double tolerance = 1e-8;
  uint64_t seed = 0;  ///< seed of the initial directions
  /// To resume a stopped run: PrincipalIteration::state of its last iteration, which was kPower.
  /// Empty: start from random directions.
  std::vector<at::Tensor> state = {};
};

/// Progress of fit_principal after one iteration.
struct PrincipalIteration {
  int64_t iteration = 0;  ///< number of the iteration, from 1
  double residual = 0;    ///< maximum of |C v - s v| over all directions, divided by the largest s
  /// Fraction of the total variance that lies along the found directions together.
  double explained = 0;
  double seconds = 0;  ///< duration of the iteration
  /// Tensors for PrincipalOptions::state; empty after the last iteration.
  std::vector<at::Tensor> state = {};
};

/// Result of fit_principal, for D columns.
struct PrincipalResult {
  /// Directions as orthonormal columns, (D, components) float64. The element of largest magnitude
  /// of each direction is positive.
  at::Tensor directions;
  at::Tensor variances;    ///< (components): variance of the rows along each direction, descending
  at::Tensor shares;       ///< (components): `variances`, divided by the total variance
  int64_t iterations = 0;  ///< number of iterations
  bool converged = false;  ///< true if it stopped at the tolerance
};

/// Finds the directions of the largest variances of a table. Passes over the rows run tasks
/// `principal.covariance` or `principal.times` (jobs/task.h). Calls `report` after each iteration;
/// kCovariance is one. The result has the same bits for any number of threads.
PrincipalResult fit_principal(const TableData& data, const PrincipalOptions& options,
                              const std::function<void(const PrincipalIteration&)>& report = {});

}  // namespace dovetail::fit
