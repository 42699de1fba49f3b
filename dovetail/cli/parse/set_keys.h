#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dovetail::cli {

/// Checks the values of option --set, each a "KEY=VALUE" that overrides a key of the config. `read`
/// are all keys and sections that `command` reads. Throws UserError if a KEY is neither in `read`
/// nor below a section in `read` ("train.batch" is below "train").
void check_set_keys(const std::vector<std::string>& overrides,
                    const std::vector<std::string_view>& read, std::string_view command);

/// If `given`, option `other` has already set `key`: throws UserError if a --set also sets `key` or
/// a key below it.
void check_set_once(const std::vector<std::string>& overrides, std::string_view key, bool given,
                    std::string_view other);

}  // namespace dovetail::cli
