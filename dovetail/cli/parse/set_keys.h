#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dovetail::cli {

/// Throws UserError for a `--set KEY=VALUE` whose key begins with none of `read`, which is all that
/// `command` reads.
void check_set_keys(const std::vector<std::string>& overrides,
                    const std::vector<std::string_view>& read, std::string_view command);

/// Throws UserError for a `--set` of `key`, or of a key below it, beside something else that gives
/// its value.
void check_set_once(const std::vector<std::string>& overrides, std::string_view key, bool given,
                    std::string_view other);

}  // namespace dovetail::cli
