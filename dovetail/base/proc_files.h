#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace dovetail {

/// What follows `key` on the first line that begins with it, without the blanks and colons between;
/// "" without such a line.
std::string line_value(std::string_view text, std::string_view key);

/// The number of a line such as "VmRSS:  1944 kB", in bytes; 0 without such a line.
uint64_t kilobytes_of(std::string_view text, std::string_view key);

struct SystemMemory {
  uint64_t total_bytes = 0, available_bytes = 0;
};

/// The machine's memory, or less where a control group (version 1 or 2) of this process or above it
/// allows less. `root` is the folder that holds `proc` and `sys`.
SystemMemory system_memory(const std::filesystem::path& root = "/");

}  // namespace dovetail
