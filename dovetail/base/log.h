#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace dovetail {

enum class LogLevel { kQuiet, kInfo, kVerbose };
void set_log_level(LogLevel level);

/// A line on standard error, whole even when threads and processes write together. Standard output
/// is for results.
void log_line(LogLevel level, const std::string& line);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
/// Always shown, with "warning: " before it.
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kQuiet, "warning: " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dovetail
