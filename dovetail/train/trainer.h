#pragma once

#include <atomic>
#include <memory>

#include "dovetail/comm/group.h"
#include "dovetail/train/config.h"

namespace dovetail {

struct TrainOptions {
  bool dry_run = false;   ///< print sizes and stop (meta device)
  bool resume = true;     ///< go on from the newest good checkpoint of the run's folder, if there is one
  bool quiet = false;
};

struct TrainResult {
  int64_t steps = 0;
  double loss = 0;                 ///< nats per token of the last step
  double validation_loss = 0;      ///< nats per token
  double validation_nats_per_byte = 0;
  bool interrupted = false;        ///< SIGINT, SIGTERM or the time limit: saved and stopped early
};

/// The main job: from config to a trained model in the run's folder (config.toml, metrics.jsonl, events, checkpoints, report.html).
TrainResult train(const RunConfig& config, std::shared_ptr<Group> group, const TrainOptions& options);

/// Asks a running `train` to finish its step, save and return; async-signal-safe.
void request_stop();

}  // namespace dovetail
