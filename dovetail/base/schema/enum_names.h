#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>

#include "dovetail/base/error.h"

namespace dovetail {

/// Returns the enumerator whose name is `text`, ignoring case. `names` must be lower case and in
/// the order of the enumerators, which count from 0. For any other text, throws UserError that
/// lists the valid names. Its message begins "{library}: no {what} is named". Example: "mx: no
/// format is named ...".
template <class Enum, size_t N>
Enum parse_enum(std::string_view library, std::string_view what, std::string_view text,
                const std::array<std::string_view, N>& names) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  const auto found = std::find(names.begin(), names.end(), lower);
  if (found == names.end())
    throw UserError(fmt::format("{}: no {} is named \"{}\"; valid are {}", library, what, text,
                                fmt::join(names, ", ")),
                    fmt::format("use one of {}", fmt::join(names, ", ")));
  return static_cast<Enum>(found - names.begin());
}

}  // namespace dovetail
