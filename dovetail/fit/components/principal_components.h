#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "dovetail/fit/rows/table_data.h"

namespace dovetail::fit {

struct PrincipalOptions {
  int64_t components = 2;
  int64_t iterations = 300;  ///< maximum number of iterations
  /// Stops when |C v - s v| is at most `tolerance` times the largest s, for every direction v with
  /// variance s. C is the covariance.
  double tolerance = 1e-8;
  uint64_t seed = 0;  ///< seed of the initial directions
  /// PrincipalIteration::state of the last iteration of a stopped run, to resume it. Empty: start
  /// from random directions.
  std::vector<at::Tensor> state = {};
};

struct PrincipalIteration {
  int64_t iteration = 0;  ///< from 1
  double residual = 0;    ///< maximum of |C v - s v| over the largest s
  double explained = 0;   ///< fraction of the total variance along the directions
  double seconds = 0;
  /// For PrincipalOptions::state; empty after the last iteration.
  std::vector<at::Tensor> state = {};
};

struct PrincipalResult {
  /// (D, components) float64, orthonormal. The element of largest magnitude of each direction is
  /// positive.
  at::Tensor directions;
  at::Tensor variances;  ///< (components), descending; variances of these rows
  at::Tensor shares;     ///< (components): fraction of the total variance
  int64_t iterations = 0;
  bool converged = false;
};

/// Finds the directions of the largest variances of a table by block power iteration (Rutishauser
/// 1970). The block has a few more directions than asked for. Each iteration takes the best
/// directions within the span of the block. An iteration is one pass over the rows, and the
/// covariance matrix is never formed. Runs task `principal.times`. The result has the same bits for
/// any number of threads.
PrincipalResult fit_principal(const TableData& data, const PrincipalOptions& options,
                              const std::function<void(const PrincipalIteration&)>& report = {});

}  // namespace dovetail::fit
