#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dovetail/fit/kmeans/kmeans.h"

namespace dovetail::fit {

/// Options of mini_batch.
struct MiniBatchOptions {
  int64_t batch = 0;         ///< rows per iteration, at least 1
  int64_t iterations = 300;  ///< maximum number of iterations
  /// Stops when the centres move by at most this much in an iteration, measured as for
  /// LloydOptions::tolerance. 0: never. Moves become smaller with each batch anyway, so a small
  /// move is a weak sign of convergence.
  double tolerance = 0;
  /// Stops after this many consecutive iterations without a new minimum of the smoothed inertia. 0:
  /// never.
  int64_t patience = 10;
  uint64_t seed = 0;  ///< selects the rows of the batches
  /// To resume a stopped run: LloydIteration::state of its last iteration. Empty: start from the
  /// given centres.
  std::vector<at::Tensor> state = {};
};

/// Returns the numbers of the rows in the batch of iteration `iteration`, (batch) int64. Iterations
/// count from 0; the data has `rows` rows. Consecutive batches go through all rows in a random
/// order. Then they go through all rows in another random order, and so on.
at::Tensor batch_rows(int64_t rows, int64_t batch, int64_t iteration, uint64_t seed);

/// Runs mini-batch k-means (Sculley, Web-scale k-means clustering, 2010) from initial centres (K,
/// D). Each centre is the mean of those rows in the batches so far for which it was the nearest
/// centre. A centre that was never the nearest stays where it started. The labels, counts and
/// inertia of the result cover all rows, assigned to the final centres. For `patience`, the inertia
/// of the batches is smoothed exponentially over about half of all rows, as scikit-learn does.
/// Batches hold no rows of weight 0; the other weights count in the means and in the inertia.
/// Calls `report` after each iteration. The result has the same bits for any number of threads.
KMeansResult mini_batch(KMeansData& data, const at::Tensor& centres,
                        const MiniBatchOptions& options,
                        const std::function<void(const LloydIteration&)>& report = {});

}  // namespace dovetail::fit
