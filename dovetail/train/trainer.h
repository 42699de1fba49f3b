#pragma once

#include <memory>
#include <optional>

#include "dovetail/comm/group.h"
#include "dovetail/train/config/options.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail {

struct TrainResult {
  int64_t steps = 0;
  double loss = 0;                        ///< nats per token, or per sample, of the last step
  std::optional<double> validation_loss;  ///< nats per token or per sample, if any are held out
  std::optional<double> validation_nats_per_byte;  ///< for text
  bool interrupted = false;  ///< SIGINT, SIGTERM or the time limit: saved and stopped early
};

/// The main job: from config to a trained model in the run's folder (docs/training.md says what
/// lies there).
///
/// All ranks of `group` together, with the same config. Throws UserError for what the user can mend
/// (before training begins, except for a full disk), CommError when another rank is gone,
/// std::runtime_error after train.max_skipped_steps non-finite steps in a row. Sets the number of
/// threads of the calling thread.
TrainResult train(const RunConfig& config, std::shared_ptr<Group> group,
                  const TrainOptions& options);

}  // namespace dovetail
