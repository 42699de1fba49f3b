#pragma once

namespace dovetail::train {

/// Options of `train` that are not part of the run's config.
struct TrainOptions {
  /// Log the sizes of the model and stop. No weights are allocated (meta device), no file is
  /// written.
  bool dry_run = false;
  /// True: resume from the newest valid checkpoint of the run's folder. False: remove the
  /// checkpoints there and start over.
  bool resume = true;
  bool quiet = false;  ///< log no progress and no summary, only warnings
};

}  // namespace dovetail::train
