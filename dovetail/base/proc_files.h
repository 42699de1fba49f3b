#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace dovetail {

/// Returns the text after `key` on the first line that begins with `key`. Blanks and colons
/// directly after `key` are skipped. Returns "" if there is no such line.
std::string line_value(std::string_view text, std::string_view key);

/// Returns the number of kB on the first line that begins with `key`, converted to bytes. Example
/// of a line: "VmRSS:  1944 kB". Returns 0 if there is no such line.
uint64_t kilobytes_of(std::string_view text, std::string_view key);

/// RAM of the machine in total, and RAM still available.
struct SystemMemory {
  uint64_t total_bytes = 0, available_bytes = 0;
};

/// Returns the memory of the machine. If this process's control group (cgroup version 1 or 2) or
/// its ancestors have a lower limit, that limit applies. `root` is the folder that contains `proc`
/// and `sys`.
SystemMemory system_memory(const std::filesystem::path& root = "/");

}  // namespace dovetail
