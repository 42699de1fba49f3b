#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dovetail/fit/kmeans/kmeans.h"

namespace dovetail::fit {

struct MiniBatchOptions {
  int64_t batch = 0;         ///< rows per iteration, at least 1
  int64_t iterations = 300;  ///< maximum number of iterations
  /// Stops when an iteration moves the centres by less, measured as for LloydOptions::tolerance. 0:
  /// never. Moves shrink by themselves as batches add up, so this limit is a weak sign of
  /// convergence.
  double tolerance = 0;
  /// Stops after this many consecutive iterations in which the smoothed inertia did not fall below
  /// its minimum. 0: never.
  int64_t patience = 10;
  uint64_t seed = 0;  ///< selects the rows of the batches
  /// LloydIteration::state of the last iteration of a stopped run, to resume it. Empty: start from
  /// the given centres.
  std::vector<at::Tensor> state = {};
};

/// Returns the row numbers (batch) int64 of iteration `iteration`, counted from 0, for data with
/// `rows` rows. All rows in a random order, then all rows in another random order, and so on, are
/// cut into batches.
at::Tensor batch_rows(int64_t rows, int64_t batch, int64_t iteration, uint64_t seed);

/// Runs mini-batch k-means (Sculley, Web-scale k-means clustering, 2010) from centres (K, D). A
/// centre is the mean of all batch rows that it was nearest to. A centre without any such row stays
/// where it started. The labels, counts and inertia of the result cover all rows, assigned to the
/// final centres. The inertia for `patience` is smoothed over about half of the rows, as
/// scikit-learn does. The result has the same bits for any number of threads.
KMeansResult mini_batch(KMeansData& data, const at::Tensor& centres,
                        const MiniBatchOptions& options,
                        const std::function<void(const LloydIteration&)>& report = {});

}  // namespace dovetail::fit
