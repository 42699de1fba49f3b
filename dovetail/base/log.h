#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace dovetail {

/// Amount of log output, ascending. kInfo is the default. kQuiet still prints warnings.
enum class LogLevel { kQuiet, kInfo, kVerbose };
/// Sets the level of this process.
void set_log_level(LogLevel level);

/// Writes one line to standard error, unless `level` is above the level that is set. Lines of
/// concurrent threads and processes do not mix. Standard output is reserved for results.
void log_line(LogLevel level, const std::string& line);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
/// Logs at every level, with the prefix "warning: ".
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kQuiet, "warning: " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dovetail
