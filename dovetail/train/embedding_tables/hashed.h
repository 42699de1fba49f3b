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
#include "dovetail/train/embedding_tables/pieces.h"

namespace dovetail::train {

/// Functions for hashed tables: embedding tables without a fixed vocabulary. Such a table gives
/// rows to 64-bit keys while training (embedding/hashed/hashed.h). A candidate is a key without a
/// row whose occurrences are counted.
///
/// Returns "embedding.<table>.<part>", the name of a table's tensor in checkpoints and exports.
std::string table_tensor(const std::string& table, std::string_view part);

/// Returns the number of rows in a block of a table. A block of rows and state has about 4 MiB.
/// Tables are saved and loaded block by block.
int64_t rows_in_block(const embedding::PackSpec& spec, int64_t table);

/// Returns the names of the tensors of hashed table `table` in a checkpoint. Tensors with one entry
/// per row: "keys", "occurrences", "last_step", "weight" and, if the optimizer has any, "state".
/// Tensors with one entry per candidate: "candidate_keys", "candidate_occurrences" and
/// "candidate_last_step".
std::vector<std::string> hashed_tensors(const embedding::PackSpec& spec, int64_t table);

/// Writes the hashed tables to a checkpoint, like save_tables (checkpoint.h). All ranks call it
/// together, between steps. A delta has, in place of all keys:
///
/// - the keys that occurred in a step since the previous save, with their tensors
/// - "removed_keys": keys whose rows were evicted since the previous save
/// - "removed_candidate_keys": keys that are no longer candidates
void save_hashed_tables(const embedding::DistributedTables& tables, io::CheckpointKind kind,
                        TableWriters writers, io::StreamedTensors* to);

/// Functions that read hashed table `table` of `spec` from a link of a checkpoint that any number
/// of ranks wrote. `suffix`: piece_suffix of the piece, or "" for a whole table. Their results
/// apply in this order.
///
/// read_removed: keys and candidates that leave at this link (KeyCounts::removed).
embedding::KeyedRows read_removed(const embedding::PackSpec& spec, int64_t table,
                                  const std::string& suffix,
                                  const io::StoredCheckpoint::Link& from);
/// read_candidates: the candidates, without keys.
embedding::KeyedRows read_candidates(const embedding::PackSpec& spec, int64_t table,
                                     const std::string& suffix,
                                     const io::StoredCheckpoint::Link& from);
/// read_keys: keys [first, first + count) with their rows, without candidates. The state is
/// undefined if the optimizer has none.
embedding::KeyedRows read_keys(const embedding::PackSpec& spec, int64_t table,
                               const std::string& suffix, const io::StoredCheckpoint::Link& from,
                               int64_t first, int64_t count);

/// Returns the counters summed over all ranks. `own` has this rank's counters; nullopt counts as
/// zero. All ranks call it together.
embedding::HashedCounters sum_over_ranks(comm::Group& group,
                                         const std::optional<embedding::HashedCounters>& own);
/// Returns a line of tables.jsonl. "rows", "candidates" and "bytes" are the current values in
/// `now`. Other counters (embedding/hashed/hashed.h) are differences between `now` and `before`,
/// the counters at the previous line.
nlohmann::ordered_json counters_json(int64_t step, const embedding::HashedCounters& now,
                                     const embedding::HashedCounters& before);
/// Returns a summary of the counters for the log, at the end of a run.
std::string counters_line(const embedding::HashedCounters& counters);
/// Returns a warning for each limit that is hit in more than a tenth of all accesses. The limits
/// are max_rows, max_bytes and max_candidates. A limit is hit if an id gets no row, or is not
/// counted as a candidate, for lack of room.
std::vector<std::string> room_warnings(const embedding::HashedCounters& counters);

}  // namespace dovetail::train
