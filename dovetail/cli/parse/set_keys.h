#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dovetail::cli {

/// Throws UserError for a `--set KEY=VALUE` unless its key is, or is below, one of `read`.
/// `command` reads no other keys.
void check_set_keys(const std::vector<std::string>& overrides,
                    const std::vector<std::string_view>& read, std::string_view command);

/// Throws UserError for a `--set` of `key`, or of a key below it, if `given`. Then `other` gives
/// its value already.
void check_set_once(const std::vector<std::string>& overrides, std::string_view key, bool given,
                    std::string_view other);

}  // namespace dovetail::cli
