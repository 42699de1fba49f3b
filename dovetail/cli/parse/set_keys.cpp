#include "dovetail/cli/parse/set_keys.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "dovetail/base/error.h"

namespace dovetail::cli {
namespace {

std::string_view key_of(std::string_view override) {
  std::string_view key = override.substr(0, override.find('='));
  while (key.ends_with(' ')) key.remove_suffix(1);
  while (key.starts_with(' ')) key.remove_prefix(1);
  return key;
}

bool is_at_or_below(std::string_view key, std::string_view parent) {
  return key.starts_with(parent) && (key.size() == parent.size() || key[parent.size()] == '.');
}

}  // namespace

void check_set_keys(const std::vector<std::string>& overrides,
                    const std::vector<std::string_view>& read, std::string_view command) {
  for (const std::string& override : overrides) {
    const std::string_view key = key_of(override);
    user_check(std::ranges::any_of(
                   read, [&](std::string_view parent) { return is_at_or_below(key, parent); }),
               "--set {} does nothing here: {} reads {}; leave it out", printable(override),
               command, fmt::join(read, ", "));
  }
}

void check_set_once(const std::vector<std::string>& overrides, std::string_view key, bool given,
                    std::string_view other) {
  for (const std::string& override : overrides)
    user_check(!given || !is_at_or_below(key_of(override), key),
               "both --set {} and {} are given; keep one of them", printable(override), other);
}

}  // namespace dovetail::cli
