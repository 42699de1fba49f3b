#pragma once

#include <string>

#include "dovetail/comm/group.h"
#include "dovetail/train/resolve/resolve.h"

namespace dovetail::train {

/// Throws UserError, with the key, if a recommender cannot train on the rows of its config.
void check_recommender(const ResolvedRun& run);

/// Decides precision, compute cost and memory estimate of `run`.
void resolve_recommender_size(ResolvedRun& run, comm::Group& group);

/// Returns the summary for the log: "dlrm 12 k parameters, 1.3 M in 8 tables · fp32".
std::string recommender_summary(const ResolvedRun& run);

}  // namespace dovetail::train
