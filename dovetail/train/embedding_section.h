#pragma once

#include "dovetail/train/config.h"

namespace dovetail {

/// Throws UserError for keys of [embedding] that contradict one another or would have no effect.
void check_embedding(const RunConfig& config);

}  // namespace dovetail
