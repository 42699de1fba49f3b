#pragma once

#include <filesystem>

#include "dovetail/data/text/data_config.h"

namespace dovetail {

/// Throws UserError for a key of [data] that differs from the settings by which the prepared
/// `folder` was made. Keys with their defaults are not compared: nobody asked for them.
void check_prepared_by(const DataConfig& config, const std::filesystem::path& folder);

}  // namespace dovetail
