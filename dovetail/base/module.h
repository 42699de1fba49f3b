#pragma once

#include <filesystem>
#include <string>

namespace dovetail {

/// Libraries of ours that are opened only when they are needed lie beside this one.
std::filesystem::path module_path(const std::string& file);

/// The function `entry` of a module, which is opened for good. UserError with `help` if it does not
/// load: something that it needs is absent.
void* open_module(const std::filesystem::path& module, const char* entry, const std::string& help);

}  // namespace dovetail
