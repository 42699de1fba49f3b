#pragma once

namespace dovetail {

struct TrainOptions {
  bool dry_run = false;  ///< print sizes and stop (meta device)
  bool resume = true;  ///< go on from the newest good checkpoint of the run's folder; false: remove
                       ///< them and start over
  bool quiet = false;  ///< no progress and no summary; warnings stay
};

}  // namespace dovetail
