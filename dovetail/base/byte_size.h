#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dovetail {

/// Parses a number of bytes, for example "64MiB", "1.5 GB" or "1e9". Units are B, KiB, MiB, GiB,
/// TiB and KB, MB, GB, TB. Returns nullopt for any other text, for sizes below 1 byte and for 2^62
/// bytes or more.
std::optional<int64_t> parse_byte_size(std::string_view text);

}  // namespace dovetail
