#pragma once

#include <optional>
#include <string>

#include "dovetail/comm/group.h"
#include "dovetail/train/resolve/resolve.h"

namespace dovetail::train {

/// Throws UserError naming the key if the config does not fit a recommender. A micro-batch must be
/// a multiple of recommender.grain, or all samples of a rank. Each sparse feature needs num_rows or
/// max_rows. Each [[embedding.override]] must apply to a table.
void check_recommender(const ResolvedRun& run);

/// Throws UserError naming the key if the recommender has something that works on a CPU only.
void check_recommender_on_gpu(const RunConfig& config);

/// Throws UserError if precision.recipe is not "auto", "fp32" or "bf16".
void check_recommender_recipe(const PrecisionSection& config);

/// Sets `precision`, `size` (parameters, FLOPs) and `memory` (estimated bytes) of `run`.
/// `kept_precision` is as in resolve_precision. All ranks call this together.
void resolve_recommender_size(ResolvedRun& run, comm::Group& group,
                              const std::optional<std::string>& kept_precision);

/// Returns the beginning of summary_line: parameters of the dense part, then parameters in tables.
/// Example: "dlrm 12 k parameters, 1.3 M in 8 tables · fp32".
std::string recommender_summary(const ResolvedRun& run);

}  // namespace dovetail::train
