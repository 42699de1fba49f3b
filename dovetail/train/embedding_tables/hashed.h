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

namespace dovetail::train {

/// Returns "embedding.<table>.<part>", the name of a table's tensor in checkpoints and exports.
std::string table_tensor(const std::string& table, std::string_view part);

/// Returns the names of a checkpoint's tensors for a table without a fixed vocabulary. Per row:
/// "keys", "occurrences", "last_step", "weight" and, if the optimizer has any, "state". Per
/// candidate: "candidate_keys", "candidate_occurrences" and "candidate_last_step".
std::vector<std::string> hashed_tensors(const embedding::PackSpec& spec, int64_t table);

/// Writes the tables without a fixed vocabulary to a checkpoint. `to` is rank 0's, null elsewhere.
/// A delta holds only keys that occurred in a step since the previous save. It also has
/// "removed_keys" and "removed_candidate_keys", the keys that left since then. All ranks call it
/// together, between steps.
void save_hashed_tables(const embedding::DistributedTables& tables, io::CheckpointKind kind,
                        io::StreamedTensors* to);
/// Restores the tables from a checkpoint that any number of ranks wrote. `from` is rank 0's, null
/// elsewhere. Throws UserError like DistributedTables::write_keys.
void restore_hashed_tables(embedding::DistributedTables& tables, const io::StoredCheckpoint* from);

/// Sums the counters over ranks; nullopt counts as zero. All ranks call it together.
embedding::HashedCounters sum_over_ranks(comm::Group& group,
                                         const std::optional<embedding::HashedCounters>& own);
/// Returns a line of tables.jsonl. It has the current "rows" and "candidates" and their "bytes".
/// Other counters (embedding/hashed/hashed.h) are accesses and keys per outcome since `before`.
nlohmann::ordered_json counters_json(int64_t step, const embedding::HashedCounters& now,
                                     const embedding::HashedCounters& before);
/// Returns a summary for the log, at the end of a run.
std::string counters_line(const embedding::HashedCounters& counters);
/// Returns a warning for each limit that refused more than a tenth of the accesses a row or a
/// count.
std::vector<std::string> room_warnings(const embedding::HashedCounters& counters);

}  // namespace dovetail::train
