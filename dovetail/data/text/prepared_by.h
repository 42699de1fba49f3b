#pragma once

#include <filesystem>

#include "dovetail/data/text/data_config.h"

namespace dovetail::data {

/// Throws UserError for a key of [data] that differs from the settings with which `folder` was
/// prepared. Keys with default values are not compared, since the user did not ask for them.
void check_prepared_by(const DataConfig& config, const std::filesystem::path& folder);

}  // namespace dovetail::data
