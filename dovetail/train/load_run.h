#pragma once

#include <filesystem>

#include "dovetail/train/gpt/load_model.h"
#include "dovetail/train/run/stored_run.h"

namespace dovetail::train {

/// Reads the checkpoint at `path`. `path` is a run's folder, a checkpoint's folder or the folder of
/// an exported recommender. In a run's folder it takes the newest checkpoint that verifies. Throws
/// UserError if `path` is none of these or no checkpoint verifies.
StoredRun read_stored_run(const std::filesystem::path& path);

/// Loads the model of the checkpoint that `read_stored_run` finds.
LoadedModel load_model(const std::filesystem::path& run_or_checkpoint);

}  // namespace dovetail::train
