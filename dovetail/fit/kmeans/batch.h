#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dovetail/fit/kmeans/kmeans.h"

namespace dovetail::fit {

struct MiniBatchOptions {
  int64_t batch = 0;         ///< rows of an iteration, at least 1
  int64_t iterations = 300;  ///< at most
  /// Ends when an iteration moved the centres by less, as LloydOptions::tolerance. Moves shrink by
  /// themselves as batches add up, so this says little; 0: never.
  double tolerance = 0;
  /// Ends after so many iterations in a row in which the smoothed inertia was not below its least
  /// value; 0: never.
  int64_t patience = 10;
  uint64_t seed = 0;  ///< of the batches
  std::vector<at::Tensor> state =
      {};  ///< of the last iteration of a run that was stopped, which this one goes on with
};

/// The rows (batch) int64 of iteration `iteration` (from 0) of `rows`: all of them in a random
/// order, then all of them in another one, and so on, cut into batches.
at::Tensor batch_rows(int64_t rows, int64_t batch, int64_t iteration, uint64_t seed);

/// Mini-batch k-means (Sculley, Web-scale k-means clustering, 2010) from centres (K, D) on: a
/// centre is the mean of all the rows of batches that it was nearest to, and of where it started
/// until there is one. Labels, counts and inertia are those of all rows at the end. A centre that
/// no row comes to stays where it is. The inertia for `patience` is smoothed over about half of the
/// rows, as scikit-learn does. The same bits for any number of threads.
KMeansResult mini_batch(KMeansData& data, const at::Tensor& centres,
                        const MiniBatchOptions& options,
                        const std::function<void(const LloydIteration&)>& report = {});

}  // namespace dovetail::fit
