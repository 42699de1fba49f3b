#pragma once

#include <memory>
#include <optional>

#include "dovetail/comm/group.h"
#include "dovetail/train/config/options.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

struct TrainResult {
  int64_t steps = 0;
  /// Loss of the last step, in nats per token or per sample.
  double loss = 0;
  /// Nats per token or per sample; nullopt if no data is held out.
  std::optional<double> validation_loss;
  std::optional<double> validation_nats_per_byte;  ///< for text only
  /// The run was saved and stopped early, by SIGINT, SIGTERM or the time limit.
  bool interrupted = false;
};

/// Trains a model from a config and stores it in the run's folder. docs/training.md lists the files
/// in this folder.
///
/// All ranks of `group` call this together, with the same config. Throws UserError for mistakes
/// that the user can fix, before training begins (except for a full disk). Throws CommError if
/// another rank is gone. Throws std::runtime_error after train.max_skipped_steps non-finite steps
/// in a row. Sets the number of threads of the calling thread.
TrainResult train(const RunConfig& config, std::shared_ptr<comm::Group> group,
                  const TrainOptions& options);

}  // namespace dovetail::train
