#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace dovetail {

/// Returns the text after `key` on the first line that begins with `key`. Blanks and colons
/// directly after `key` are skipped. Returns "" if there is no such line.
std::string line_value(std::string_view text, std::string_view key);

/// Returns the number of a line such as "VmRSS:  1944 kB", in bytes; 0 if no line begins with
/// `key`.
uint64_t kilobytes_of(std::string_view text, std::string_view key);

struct SystemMemory {
  uint64_t total_bytes = 0, available_bytes = 0;
};

/// Returns the memory of the machine. If a control group (version 1 or 2) of this process or one of
/// its ancestors has a lower limit, that limit applies. `root` is the folder that contains `proc`
/// and `sys`.
SystemMemory system_memory(const std::filesystem::path& root = "/");

}  // namespace dovetail
