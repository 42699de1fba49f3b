#include "dovetail/base/proc_files.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>

#include "dovetail/base/file.h"

namespace dovetail {
namespace {

namespace fs = std::filesystem;

std::string read_if_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) ? read_file(path) : std::string();
}

std::optional<uint64_t> leading_number(std::string_view text) {
  uint64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc())
    return std::nullopt;
  return value;
}

// File names of one version of control groups.
struct GroupFiles {
  const char *limit, *usage, *inactive_key;
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file "};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file "};

// Lowers `memory` to the limit of one group. Inactive file pages count as available, since the
// system reclaims them when needed.
void tighten(SystemMemory& memory, const fs::path& group, const GroupFiles& files) {
  const auto limit = leading_number(read_if_there(group / files.limit));
  if (!limit) return;  // no such file, or "max"
  const uint64_t used = leading_number(read_if_there(group / files.usage)).value_or(0);
  const std::string inactive = line_value(read_if_there(group / "memory.stat"), files.inactive_key);
  const uint64_t held = used - std::min(used, leading_number(inactive).value_or(0));
  memory.total_bytes = std::min(memory.total_bytes, *limit);
  memory.available_bytes = std::min(memory.available_bytes, *limit - std::min(*limit, held));
}

// Applies the limits of the group and its ancestors. Inside a container, `path` may be the path on
// the host, and only its end is mounted as the root. Therefore the root is always read.
void tighten_along(SystemMemory& memory, fs::path mount, const std::string& path,
                   const GroupFiles& files) {
  tighten(memory, mount, files);
  for (const fs::path& part : fs::path(path).relative_path()) tighten(memory, mount /= part, files);
}

// Returns the path after the controllers in a line "4:memory,cpu:/path" of /proc/self/cgroup. Lines
// of version 2 have no controllers.
std::string group_path(std::string_view groups, std::string_view controller) {
  for (size_t begin = 0; begin < groups.size();) {
    const size_t end = std::min(groups.find('\n', begin), groups.size());
    const std::string_view line = groups.substr(begin, end - begin);
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    begin = end + 1;
    if (first == line.npos || second == line.npos) continue;
    const std::string names = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    if (names.find("," + std::string(controller) + ",") != names.npos)
      return std::string(line.substr(second + 1));
  }
  return {};
}

}  // namespace

std::string line_value(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(key)) {
      const size_t begin = line.find_first_not_of(" \t:", key.size());
      return begin == line.npos ? std::string() : std::string(line.substr(begin));
    }
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return {};
}

uint64_t kilobytes_of(std::string_view text, std::string_view key) {
  return leading_number(line_value(text, key)).value_or(0) * 1024;
}

SystemMemory system_memory(const fs::path& root) {
  const std::string info = read_file(root / "proc/meminfo");
  SystemMemory memory{kilobytes_of(info, "MemTotal:"), kilobytes_of(info, "MemAvailable:")};
  const std::string groups = read_if_there(root / "proc/self/cgroup");
  tighten_along(memory, root / "sys/fs/cgroup", group_path(groups, ""), kVersion2);
  tighten_along(memory, root / "sys/fs/cgroup/memory", group_path(groups, "memory"), kVersion1);
  return memory;
}

}  // namespace dovetail
