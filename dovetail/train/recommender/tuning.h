#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "dovetail/embedding/ranks/table_placement.h"
#include "dovetail/train/resolve/resolved_run.h"

namespace dovetail {

/// What a run may leave to a measurement ("auto"), for results do not depend on it.
struct TableSizes {
  int64_t groups = 1;        ///< embedding.groups
  int64_t micro_batch = 1;   ///< train.micro_batch: samples at once on a rank
  int64_t memory_bytes = 0;  ///< embedding.memory_bytes; 0: all rows in memory
  bool operator==(const TableSizes&) const = default;
};

/// What there is to choose from, the simplest first: 1, 2 and 4 groups, as far as there are tables,
/// with micro-batches of all samples of a rank, half, a quarter and an eighth of them, rounded up
/// to recommender.grain, where `run` is estimated to fit into the memory available with them; where
/// none does, the largest that does or a grain. What the config says is in all.
std::vector<TableSizes> candidate_sizes(const ResolvedRun& run, int64_t tables);

/// Seconds a step with each candidate, in rounds, for each the least. `run_steps(candidate)` runs
/// some steps and gives the seconds of one, the same on all ranks. Candidates that differ in groups
/// alone need other tables, so those of one number of groups take turns. After the first round
/// those that took over 1.2 times the best so far are left out.
std::vector<double> measure_steps(const std::vector<TableSizes>& candidates,
                                  const std::function<double(const TableSizes&)>& run_steps);

/// The first that took at most 1.03 times as long as the best: what is simpler wins where the
/// difference is noise.
size_t simplest_of_fastest(const std::vector<double>& step_s);

/// What rows and state get of `available_bytes` of memory for this rank, nine tenths of which may
/// be used, where all else takes `others_bytes`: 0, all in memory, if the rank's `table_bytes` fit.
/// Throws UserError if nothing is left.
int64_t memory_for_rows(double available_bytes, double others_bytes, double table_bytes);

/// Of rows and state on the rank that has most of them.
int64_t most_table_bytes(const embedding::PackSpec& spec, const embedding::EmbeddingPlan& plan);

/// For embedding_plan.json: what was chosen, and the milliseconds of a step with each candidate.
nlohmann::ordered_json sizes_json(const TableSizes& sizes,
                                  const std::vector<TableSizes>& candidates,
                                  const std::vector<double>& step_s);
/// For the log, of such a record.
std::string sizes_line(const nlohmann::ordered_json& record);

}  // namespace dovetail
