#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "dovetail/fit/rows/table_data.h"

namespace dovetail::fit {

/// Options of fit_principal. A principal component is a direction v, a unit vector, with the
/// variance s of the rows along it. C is the covariance matrix of the columns.
struct PrincipalOptions {
  int64_t components = 2;    ///< number of directions to find
  int64_t iterations = 300;  ///< maximum number of iterations
  /// Stops when |C v - s v| is at most `tolerance` times the largest s, for each direction v.
  double tolerance = 1e-8;
  uint64_t seed = 0;  ///< seed of the initial directions
  /// To resume a stopped run: PrincipalIteration::state of its last iteration. Empty: start from
  /// random directions.
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

/// Finds the directions of the largest variances of a table by block power iteration (Rutishauser
/// 1970). It iterates on a block of a few more directions than asked for. Each iteration takes the
/// best directions within the span of the block. An iteration is one pass over the rows, by task
/// `principal.times` (jobs/task.h). The covariance matrix is never formed. Calls `report` after
/// each iteration. The result has the same bits for any number of threads.
PrincipalResult fit_principal(const TableData& data, const PrincipalOptions& options,
                              const std::function<void(const PrincipalIteration&)>& report = {});

}  // namespace dovetail::fit
