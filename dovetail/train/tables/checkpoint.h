#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "dovetail/embedding/ranks/distributed.h"
#include "dovetail/io/checkpoint.h"

namespace dovetail {

/// Tables in a checkpoint: "embedding.<table>.weight" (rows, stored_width) and, where the optimizer
/// has any, "embedding.<table>.state" (rows, state_per_row) float32. A delta has changed rows
/// alone. A full checkpoint has updated rows alone if they are fewer than half: the others have
/// their initial values. Numbers of such rows are in "embedding.<table>.rows" (n) int64, ascending.
bool is_of_table(const std::string& tensor);

/// Writes the tables with a fixed vocabulary (hashed_tables.h has the others) block by block; `to`
/// is rank 0's, null elsewhere. All ranks together, between steps.
void save_tables(const embedding::DistributedTables& tables, CheckpointKind kind,
                 StreamedTensors* to);

/// The inverse, of a checkpoint of any number of ranks; `from` is rank 0's, null elsewhere. All
/// ranks together. Throws UserError unless the tables are those of the checkpoint.
void load_tables(embedding::DistributedTables& tables, const StoredCheckpoint* from, Group& group);

/// Puts whole tables in the place of updated rows and their numbers in the tensors of a checkpoint.
void add_initial_rows(const embedding::PackSpec& spec, std::map<std::string, at::Tensor>& tensors);

}  // namespace dovetail
