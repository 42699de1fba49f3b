#pragma once

#include <cstdint>
#include <string>

namespace dovetail::plan {

/// Parses a memory budget and returns bytes. Examples: "6GiB", "512MiB", "1e9", "0.5x". The last is
/// a share of `keep_all_bytes`: the peak memory of a step that offloads, recomputes and compresses
/// nothing. Units are B, KiB, MiB, GiB, TiB and KB, MB, GB, TB. Throws UserError for any other
/// text, and for a budget that is not positive.
int64_t parse_budget(const std::string& text, int64_t keep_all_bytes);

}  // namespace dovetail::plan
