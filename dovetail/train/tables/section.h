#pragma once

#include "dovetail/train/config/run_config.h"

namespace dovetail {

/// The most steps that a key of a config may be.
inline constexpr double kManySteps = 1e12;

/// Throws UserError for keys of [embedding] that contradict one another or would have no effect.
void check_embedding(const RunConfig& config);

}  // namespace dovetail
