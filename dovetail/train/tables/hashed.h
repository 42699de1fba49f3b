#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/embedding/ranks/distributed.h"
#include "dovetail/io/checkpoint.h"

namespace dovetail {

/// "embedding.<table>.<part>": what a table's tensors are called in checkpoints and exports.
std::string table_tensor(const std::string& table, std::string_view part);

/// What a checkpoint holds of a table without a fixed vocabulary beside its "weight" and "state":
/// "keys", "occurrences" and "last_step" of the rows, "candidate_keys", "candidate_occurrences" and
/// "candidate_last_step".
std::vector<std::string> hashed_tensors(const embedding::PackSpec& spec, int64_t table);

/// Writes the tables without a fixed vocabulary; `to` is rank 0's, null elsewhere. A delta has of
/// the tensors above the keys that occurred in a step since the save before, and "removed_keys" and
/// "removed_candidate_keys", that have left since. All ranks together, between steps.
void save_hashed_tables(const embedding::DistributedTables& tables, CheckpointKind kind,
                        StreamedTensors* to);
/// The inverse, of a checkpoint of any number of ranks; `from` is rank 0's, null elsewhere. Throws
/// UserError as DistributedTables::write_keys.
void restore_hashed_tables(embedding::DistributedTables& tables, const StoredCheckpoint* from);

/// All ranks together.
embedding::HashedCounters sum_over_ranks(Group& group,
                                         const std::optional<embedding::HashedCounters>& own);
/// A line of tables.jsonl: "rows" and "candidates" there are, the "bytes" that they take, and what
/// became of keys since `before`.
nlohmann::ordered_json counters_json(int64_t step, const embedding::HashedCounters& now,
                                     const embedding::HashedCounters& before);
/// For the log, at the end of a run.
std::string counters_line(const embedding::HashedCounters& counters);
/// More than a tenth of the accesses that found no room for their ids, a line for each reason.
std::vector<std::string> room_warnings(const embedding::HashedCounters& counters);

}  // namespace dovetail
