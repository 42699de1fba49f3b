#pragma once

#include <filesystem>
#include <string>

namespace dovetail {

/// `name` in $DOVETAIL_CACHE, $XDG_CACHE_HOME/dovetail or ~/.cache/dovetail: where what was
/// measured of this machine is kept. UserError when none of these variables nor HOME is set.
std::filesystem::path cache_folder(const std::string& name);

}  // namespace dovetail
