#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "dovetail/embedding/ranks/distributed.h"
#include "dovetail/io/checkpoint.h"

namespace dovetail::train {

/// Returns true if `tensor`, a name in a checkpoint, belongs to an embedding table. A table with a
/// fixed vocabulary has these tensors:
///
/// - "embedding.<table>.weight": (rows, stored_width), the rows in their storage format
/// - "embedding.<table>.state": (rows, state_per_row) float32, if its optimizer has state
/// - "embedding.<table>.rows": (n) int64, ascending row numbers, if not all rows are stored
///
/// If "embedding.<table>.rows" exists, `weight` and `state` have n rows. Rows that are not stored:
///
/// - In a delta (io::CheckpointKind): rows that did not change since the previous checkpoint.
/// - In a full checkpoint: rows that were never updated. They still have their initial values. All
///   rows are stored if this takes no more bytes than the updated rows with their numbers.
bool is_of_table(const std::string& tensor);

/// Writes the tables with a fixed vocabulary to a checkpoint, block by block. Hashed tables have
/// their own function (hashed.h). `kind`: full checkpoint or delta. `to` is the checkpoint on rank
/// 0, and null on other ranks. All ranks call this together, between steps.
void save_tables(const embedding::DistributedTables& tables, io::CheckpointKind kind,
                 io::StreamedTensors* to);

/// Reads tables that save_tables wrote with any number of ranks. `from` is the checkpoint on rank
/// 0, and null on other ranks. All ranks call this together. Throws UserError unless the checkpoint
/// has the same tables.
void load_tables(embedding::DistributedTables& tables, const io::StoredCheckpoint* from,
                 comm::Group& group);

/// Completes the tables in `tensors`, the tensors of a checkpoint. A table with only its updated
/// rows gets all its rows. Rows that are not stored get their initial values, and
/// "embedding.<table>.rows" is removed.
void add_initial_rows(const embedding::PackSpec& spec, std::map<std::string, at::Tensor>& tensors);

}  // namespace dovetail::train
