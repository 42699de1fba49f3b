#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "dovetail/embedding/ranks/table_placement.h"
#include "dovetail/train/resolve/resolved_run.h"

namespace dovetail::train {

/// Sizes that a run chooses by measurement if the config says "auto". Results of training do not
/// depend on them. The tables are divided into groups. One group is looked up while ranks exchange
/// the rows of the previous group.
struct TableSizes {
  int64_t groups = 1;       ///< number of groups (embedding.groups)
  int64_t micro_batch = 1;  ///< samples of a rank per micro-batch (train.micro_batch)
  /// Memory of a rank for rows and their state (embedding.memory_bytes). 0: all rows are in memory.
  int64_t memory_bytes = 0;
  bool operator==(const TableSizes&) const = default;
};

/// Returns the candidates for the choice of sizes, simplest first. `tables` is the number of
/// tables. A size that the config sets is the same in all candidates. The values of a size that is
/// "auto":
///
/// - `groups`: 1, 2 and 4, up to the number of tables.
/// - `micro_batch`: all samples of a rank, a half, a quarter and an eighth. Each is rounded up to a
///   multiple of recommender.grain. It is a candidate only if the run is estimated to fit into
///   available memory. If none of the four fits, halving continues to the first that fits, or to
///   one grain.
std::vector<TableSizes> candidate_sizes(const ResolvedRun& run, int64_t tables);

/// Returns the seconds per step of each candidate: the minimum over several rounds.
/// `run_steps(candidate)` runs some steps and returns the seconds per step, the same on all ranks.
/// Order of the measurements:
///
/// 1. Candidates with equal `groups` are measured in all rounds before the next ones: another
///    number of groups requires new tables.
/// 2. In each round, these candidates run in turn.
/// 3. After the first round, a candidate is skipped if its time is over 1.2 times the best time so
///    far.
std::vector<double> measure_steps(const std::vector<TableSizes>& candidates,
                                  const std::function<double(const TableSizes&)>& run_steps);

/// Returns the index of the first candidate whose time `step_s` is at most 1.03 times the best.
/// Differences within 3 % are noise, so the simpler candidate wins.
size_t simplest_of_fastest(const std::vector<double>& step_s);

/// Returns the bytes of memory that this rank can give to table rows and their optimizer state: 0.9
/// * `available_bytes` - `others_bytes`. Returns 0 if `table_bytes`, all rows and state, fit into
/// that. `others_bytes` are the bytes that everything else takes. Throws UserError if nothing is
/// left for rows.
int64_t memory_for_rows(double available_bytes, double others_bytes, double table_bytes);

/// Returns the maximum over ranks of the bytes of rows and optimizer state on one rank.
int64_t maximum_table_bytes(const embedding::PackSpec& spec, const embedding::TablePlacement& plan);

/// Returns the entry "auto" of embedding_plan.json: the chosen `sizes`, and milliseconds per step
/// of each candidate. `step_s` is the result of measure_steps.
nlohmann::ordered_json sizes_json(const TableSizes& sizes,
                                  const std::vector<TableSizes>& candidates,
                                  const std::vector<double>& step_s);
/// Returns a line for the log about `record`, a result of sizes_json.
std::string sizes_line(const nlohmann::ordered_json& record);

}  // namespace dovetail::train
