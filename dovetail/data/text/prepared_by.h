#pragma once

#include <filesystem>

#include "dovetail/data/text/data_config.h"

namespace dovetail::data {

/// Checks that `folder` was prepared as `config` ([data]) says. Throws UserError, naming the key,
/// for a key that differs from the settings in the folder's manifest. Keys with default values are
/// not compared, since the user did not ask for them. Also throws if the folder left out more than
/// config.max_bad_rows bad records.
void check_prepared_by(const DataConfig& config, const std::filesystem::path& folder);

}  // namespace dovetail::data
