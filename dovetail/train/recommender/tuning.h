#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "dovetail/embedding/ranks/table_placement.h"
#include "dovetail/train/resolve/resolved_run.h"

namespace dovetail::train {

/// Sizes that a run may choose by measurement ("auto"). Results do not depend on them.
struct TableSizes {
  int64_t groups = 1;        ///< embedding.groups
  int64_t micro_batch = 1;   ///< train.micro_batch: samples of a rank per micro-batch
  int64_t memory_bytes = 0;  ///< embedding.memory_bytes; 0: all rows in memory
  bool operator==(const TableSizes&) const = default;
};

/// Returns the sizes to choose from, simplest first. Groups are 1, 2 and 4, up to the number of
/// tables. Micro-batches are all samples of a rank, a half, a quarter and an eighth, rounded up to
/// recommender.grain. A micro-batch is included if `run` is estimated to fit into available memory
/// with it. If none of them fits, halving continues to the first that fits or to one grain. Sizes
/// that the config sets are the same in all candidates.
std::vector<TableSizes> candidate_sizes(const ResolvedRun& run, int64_t tables);

/// Returns the seconds per step of each candidate: the minimum over rounds. `run_steps(candidate)`
/// runs some steps and returns the seconds of one, the same on all ranks. Tables depend on the
/// number of groups. So candidates with the same number of groups are measured in turns, before
/// those with the next. After the first round, candidates that took over 1.2 times the best so far
/// are left out.
std::vector<double> measure_steps(const std::vector<TableSizes>& candidates,
                                  const std::function<double(const TableSizes&)>& run_steps);

/// Returns the index of the first candidate that took at most 1.03 times as long as the best.
/// Within this noise, the simpler candidate wins.
size_t simplest_of_fastest(const std::vector<double>& step_s);

/// Returns the bytes for rows and optimizer state on this rank, or 0 if its `table_bytes` fit in
/// full. The rank may use 0.9 * `available_bytes`; everything else takes `others_bytes`. Throws
/// UserError if nothing is left for rows.
int64_t memory_for_rows(double available_bytes, double others_bytes, double table_bytes);

/// Returns the maximum over ranks of the bytes of rows and optimizer state.
int64_t most_table_bytes(const embedding::PackSpec& spec, const embedding::TablePlacement& plan);

/// Returns the entry "auto" of embedding_plan.json: the chosen sizes, and milliseconds per step of
/// each candidate.
nlohmann::ordered_json sizes_json(const TableSizes& sizes,
                                  const std::vector<TableSizes>& candidates,
                                  const std::vector<double>& step_s);
/// Returns the log line of a record made by sizes_json.
std::string sizes_line(const nlohmann::ordered_json& record);

}  // namespace dovetail::train
