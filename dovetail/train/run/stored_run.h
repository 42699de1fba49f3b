#pragma once

#include <filesystem>

#include "dovetail/io/checkpoint.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// A checkpoint and the config of its run.
struct StoredRun {
  io::Snapshot snapshot;
  RunConfig config;
  std::filesystem::path checkpoint;  ///< folder of the checkpoint
};

/// A run's folder (its newest checkpoint that verifies) or a checkpoint's. Throws UserError if
/// `path` is neither, or if no checkpoint is good.
StoredRun read_run_or_checkpoint(const std::filesystem::path& path);

/// A snapshot with the config in its state. Throws UserError if the state holds no config and
/// tokenizer; `checkpoint` names it.
StoredRun stored_run(io::Snapshot snapshot, std::filesystem::path checkpoint);

}  // namespace dovetail::train
