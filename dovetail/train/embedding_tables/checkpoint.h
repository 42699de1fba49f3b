#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "dovetail/embedding/ranks/distributed.h"
#include "dovetail/io/checkpoint.h"

namespace dovetail::train {

/// Returns true if a tensor of a checkpoint belongs to a table. A table has these tensors:
///
/// - "embedding.<table>.weight": (rows, stored_width)
/// - "embedding.<table>.state": (rows, state_per_row) float32, if its optimizer has state
/// - "embedding.<table>.rows": (n) int64, ascending row numbers, if not all rows are stored
///
/// A delta stores only changed rows. A full checkpoint stores only updated rows if they are fewer
/// than half. All other rows then have their initial values.
bool is_of_table(const std::string& tensor);

/// Writes the tables with a fixed vocabulary, block by block. hashed_tables.h writes the others.
/// `to` belongs to rank 0 and is null elsewhere. All ranks call this together, between steps.
void save_tables(const embedding::DistributedTables& tables, io::CheckpointKind kind,
                 io::StreamedTensors* to);

/// Reads tables that save_tables wrote with any number of ranks. `from` belongs to rank 0 and is
/// null elsewhere. All ranks call this together. Throws UserError unless the checkpoint has the
/// same tables.
void load_tables(embedding::DistributedTables& tables, const io::StoredCheckpoint* from,
                 comm::Group& group);

/// Replaces updated rows and their numbers by whole tables, in the tensors of a checkpoint. All
/// other rows get their initial values.
void add_initial_rows(const embedding::PackSpec& spec, std::map<std::string, at::Tensor>& tensors);

}  // namespace dovetail::train
