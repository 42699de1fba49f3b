#pragma once

#include <filesystem>
#include <string>

namespace dovetail {

/// Returns the path `name` under the cache folder, where measurements of this machine are stored.
/// The cache folder is $DOVETAIL_CACHE, else $XDG_CACHE_HOME/dovetail, else ~/.cache/dovetail.
/// Throws UserError if neither of these variables nor HOME is set.
std::filesystem::path cache_folder(const std::string& name);

}  // namespace dovetail
