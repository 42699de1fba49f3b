#pragma once

#include <filesystem>
#include <string>

namespace dovetail {

/// Returns the path of subfolder `name` of the cache folder. Dovetail stores measurements and plans
/// there, for later runs on this machine. The cache folder is $DOVETAIL_CACHE, else
/// $XDG_CACHE_HOME/dovetail, else $HOME/.cache/dovetail. Throws UserError if none of the three
/// variables is set.
std::filesystem::path cache_folder(const std::string& name);

}  // namespace dovetail
