#pragma once

#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Throws UserError for keys of [embedding] that contradict one another or would have no effect.
void check_embedding(const RunConfig& config);

}  // namespace dovetail::train
