#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dovetail {

/// Bytes: "64MiB", "1.5 GB", "1e9". Units are B, KiB, MiB, GiB, TiB and KB, MB, GB, TB. Nothing for
/// anything else, and where it is below 1.
std::optional<int64_t> parse_byte_size(std::string_view text);

}  // namespace dovetail
