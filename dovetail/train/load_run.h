#pragma once

#include <filesystem>
#include <string>

#include "dovetail/train/gpt/load_model.h"
#include "dovetail/train/run/stored_run.h"

namespace dovetail::train {

/// Reads the checkpoint at `path`: the folder of a run, a checkpoint or an exported recommender.
/// From a run's folder it takes the newest checkpoint whose checksums are right. Throws UserError
/// if `path` is none of these folders, or if no checkpoint has right checksums.
StoredRun read_stored_run(const std::filesystem::path& path);

/// Loads the GPT of the checkpoint that read_stored_run(run_or_checkpoint) returns, as the other
/// load_model does. Throws UserError for a recommender.
LoadedModel load_model(const std::filesystem::path& run_or_checkpoint,
                       const std::string& precision = "");

}  // namespace dovetail::train
