#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "dovetail/fit/rows/table_data.h"

namespace dovetail::fit {

struct PrincipalOptions {
  int64_t components = 2;
  int64_t iterations = 300;  ///< at most
  /// Ends when every direction v with variance s solves C v = s v, C the covariance, to this times
  /// the largest s.
  double tolerance = 1e-8;
  uint64_t seed = 0;  ///< of the first directions
  std::vector<at::Tensor> state =
      {};  ///< of the last iteration of a run that was stopped, which this one goes on with
};

struct PrincipalIteration {
  int64_t iteration = 0;  ///< from 1
  double residual = 0;    ///< the largest |C v - s v| over the largest s
  double explained = 0;   ///< the part of the variance along the directions
  double seconds = 0;
  std::vector<at::Tensor> state = {};  ///< PrincipalOptions::state; none after the last iteration
};

struct PrincipalResult {
  at::Tensor directions;  ///< (D, components) float64, orthonormal; of each the element of largest
                          ///< size is positive
  at::Tensor variances;   ///< (components), the largest first, of these rows
  at::Tensor shares;      ///< of all variance
  int64_t iterations = 0;
  bool converged = false;
};

/// The directions of the largest variances of a table, by power iteration of a block of some more
/// directions than asked for, with the best of their span taken each time (Rutishauser 1970): an
/// iteration is one pass, and the covariance is never made. Task `principal.times`. The same bits
/// for any number of threads.
PrincipalResult fit_principal(const TableData& data, const PrincipalOptions& options,
                              const std::function<void(const PrincipalIteration&)>& report = {});

}  // namespace dovetail::fit
