#pragma once

#include <cstdint>
#include <string>

namespace dovetail::plan {

/// Parses a memory budget and returns bytes. Examples: "6GiB", "512MiB", "1e9", "0.5x". Units are
/// B, KiB, MiB, GiB, TiB, KB, MB, GB and TB. A number without a unit is in bytes. The suffix "x"
/// multiplies by `keep_all_bytes`: the peak memory of a step without offload, recomputation and
/// compression. Throws UserError for any other text, and for a budget that is not positive.
int64_t parse_budget(const std::string& text, int64_t keep_all_bytes);

}  // namespace dovetail::plan
