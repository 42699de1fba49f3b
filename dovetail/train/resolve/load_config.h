#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dovetail/train/config/run_config.h"

namespace dovetail {

/// Throws UserError for keys that contradict one another (batch divisible, warm-up shorter than the
/// run, ...) or would have no effect.
void check_run_config(const RunConfig& config);

/// The config of a file with its `--set`s; presets applied, and checked.
RunConfig load_run_config(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides);
/// The same without a file.
RunConfig default_run_config(const std::vector<std::string>& overrides);

}  // namespace dovetail
