#pragma once

#include <string>

#include "dovetail/comm/group.h"
#include "dovetail/train/resolve/resolve.h"

namespace dovetail {

/// Throws UserError for what a recommender cannot do with the rows of its config, naming the key.
void check_recommender(const ResolvedRun& run);

/// Precision, cost and memory.
void resolve_recommender_size(ResolvedRun& run, Group& group);

/// "dlrm 12 k parameters, 1.3 M in 8 tables · fp32".
std::string recommender_summary(const ResolvedRun& run);

}  // namespace dovetail
