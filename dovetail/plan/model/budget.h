#pragma once

#include <cstdint>
#include <string>

namespace dovetail::plan {

/// A budget in bytes: "6GiB", "512MiB", "1e9", or "0.5x" of `keep_all_bytes`, the peak with
/// everything kept. Units are B, KiB, MiB, GiB, TiB and KB, MB, GB, TB. UserError on anything else,
/// and where it is not positive.
int64_t parse_budget(const std::string& text, int64_t keep_all_bytes);

}  // namespace dovetail::plan
