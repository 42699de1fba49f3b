#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Throws UserError for keys that contradict one another or have no effect. For example, the
/// warm-up must be shorter than the run. With [balance], train.batch must be a multiple of
/// train.micro_batch.
void check_run_config(const RunConfig& config);

/// Reads the config file `path` and applies `overrides`, each "section.key=value" as for `--set`.
/// Other keys have their defaults; model.preset decides the defaults of [model]. The result has
/// passed check_run_config.
RunConfig load_run_config(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides);
/// Returns the result of load_run_config for an empty config file.
RunConfig default_run_config(const std::vector<std::string>& overrides);

}  // namespace dovetail::train
