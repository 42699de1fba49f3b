#pragma once

#include <filesystem>

#include "dovetail/train/gpt/load_model.h"
#include "dovetail/train/run/stored_run.h"

namespace dovetail {

/// `path` is a run's folder (its newest checkpoint that verifies), a checkpoint's, or that of an
/// exported recommender. Throws UserError when it is none of these, or when no checkpoint is good.
StoredRun read_stored_run(const std::filesystem::path& path);

/// That of read_stored_run.
LoadedModel load_model(const std::filesystem::path& run_or_checkpoint);

}  // namespace dovetail
