#pragma once

#include <memory>
#include <optional>

#include "dovetail/comm/group.h"
#include "dovetail/train/config/options.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Result of `train`. After a dry run all members have their defaults.
struct TrainResult {
  int64_t steps = 0;  ///< steps of the run so far, in all processes that trained it
  /// Training loss of the last step, in nats per token (GPT), per sample, or per pixel of masks.
  double loss = 0;
  /// Loss of the newest validation, in the same unit. It is nullopt if no validation has run, for
  /// example because no data is held out.
  std::optional<double> validation_loss;
  /// Loss of the same validation in nats per byte of text; only for a GPT.
  std::optional<double> validation_nats_per_byte;
  /// True if SIGINT, SIGTERM or the time limit stopped the run early. The run was then saved.
  bool interrupted = false;
};

/// Trains the model of a config and stores it in the run's folder (RunConfig::folder). The files in
/// this folder are listed in docs/training.md.
///
/// All ranks of `group` call this together, with the same config. Throws UserError for mistakes
/// that the user can fix. All of them are found before training begins, except a full disk. Throws
/// CommError if another rank is gone. Throws std::runtime_error after train.max_skipped_steps
/// non-finite steps in a row. In a non-finite step the loss or the gradient is NaN or infinite.
/// Sets the number of CPU threads of the calling thread.
TrainResult train(const RunConfig& config, std::shared_ptr<comm::Group> group,
                  const TrainOptions& options);

}  // namespace dovetail::train
