#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Throws UserError for keys that contradict one another or have no effect. For example,
/// train.batch must be divisible and the warm-up shorter than the run.
void check_run_config(const RunConfig& config);

/// Returns the config of a file with its `--set` overrides, presets applied, after all checks.
RunConfig load_run_config(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides);
/// Returns the default config with `--set` overrides, after all checks.
RunConfig default_run_config(const std::vector<std::string>& overrides);

}  // namespace dovetail::train
