#pragma once

#include <filesystem>
#include <string>

namespace dovetail {

/// Returns the path of `file` in the folder that contains Dovetail's own shared library. Modules
/// are installed there: shared libraries that Dovetail loads only on demand.
std::filesystem::path module_path(const std::string& file);

/// Loads the library `module`, which is never unloaded, and returns the address of its function
/// `entry`. Throws UserError with `help` if the library does not load, for example because a
/// dependency is missing. Throws InternalError if it has no `entry`.
void* open_module(const std::filesystem::path& module, const char* entry, const std::string& help);

}  // namespace dovetail
