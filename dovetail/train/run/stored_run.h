#pragma once

#include <filesystem>
#include <string>

#include "dovetail/io/checkpoint.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Prefix of a parameter's name in a checkpoint.
inline const std::string kModelPrefix = "model.";

/// A checkpoint and the config of its run.
struct StoredRun {
  io::Snapshot snapshot;  ///< tensors and state of the checkpoint
  RunConfig config;
  std::filesystem::path checkpoint;  ///< folder of the checkpoint
};

/// Reads the checkpoint at `path`: a checkpoint's folder, or a run's folder. From a run's folder it
/// takes the newest checkpoint whose checksums are right. Throws UserError if `path` is neither, or
/// if no checkpoint has right checksums.
StoredRun read_run_or_checkpoint(const std::filesystem::path& path);

/// Opens the checkpoint that read_run_or_checkpoint reads, without its tensors. Throws UserError in
/// the same cases.
io::StoredCheckpoint open_run_or_checkpoint(const std::filesystem::path& path);

/// Reads the config in the state of `snapshot`, and returns both. `checkpoint` is the folder of the
/// snapshot, also for error messages. Throws UserError if the state has no config or no entry for a
/// tokenizer.
StoredRun stored_run(io::Snapshot snapshot, std::filesystem::path checkpoint);

}  // namespace dovetail::train
