#pragma once

namespace dovetail {

struct RunConfig;

/// Throws UserError where [memory] says something that cannot be, and where it has a budget for a run whose steps are
/// not all alike, naming what makes them differ.
void check_memory(const RunConfig& config);

}  // namespace dovetail
