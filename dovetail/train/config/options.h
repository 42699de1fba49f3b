#pragma once

namespace dovetail::train {

struct TrainOptions {
  bool dry_run = false;  ///< print sizes and stop (uses the meta device)
  /// Resume from the newest good checkpoint of the run's folder. False: remove its checkpoints and
  /// start over.
  bool resume = true;
  bool quiet = false;  ///< no progress and no summary; warnings are still logged
};

}  // namespace dovetail::train
