#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "dovetail/embedding/ranks/distributed.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/train/embedding_tables/pieces.h"

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
///
/// A table in pieces (TableWriters::kHolders) has these tensors for each piece. Their names end
/// with piece_suffix. Pieces always have "rows".
bool is_of_table(const std::string& tensor);

/// Writes the tables with a fixed vocabulary to a checkpoint, block by block. Hashed tables have
/// their own function (hashed.h). `kind`: full checkpoint or delta. `to` is the checkpoint on a
/// rank that writes, and null on other ranks: with kRankZero, on all but rank 0. All ranks call
/// this together, between steps.
void save_tables(const embedding::DistributedTables& tables, io::CheckpointKind kind,
                 TableWriters writers, io::StreamedTensors* to);

/// Reads tables that save_tables wrote with any number of ranks. `from` is the checkpoint on rank
/// 0, and null on other ranks. All ranks call this together. Throws UserError unless the checkpoint
/// has the same tables.
void load_tables(embedding::DistributedTables& tables, const io::StoredCheckpoint* from,
                 comm::Group& group);

/// Table of a checkpoint whose rows a table of the model takes.
struct TableSource {
  int64_t table = -1;  ///< index in StoredTables::spec; -1: none, the table stays as it is
  /// Row r of the stored table becomes the rows r + i * (its rows), for all i below `copies`.
  int64_t copies = 1;
  bool state = true;  ///< false: the optimizer state of the rows becomes zero
};

/// Tables in the checkpoint of another model, and what each table of this model takes of them.
struct StoredTables {
  embedding::PackSpec spec;          ///< tables of the checkpoint
  std::vector<TableSource> sources;  ///< for each table of this model
  int64_t steps = 0;                 ///< steps that the checkpoint's hashed tables had ended
};

/// Same as load_tables, but for a model with other tables. It fills the tables that have a source,
/// also the hashed ones. If a hashed table takes a table with a fixed vocabulary, its keys are the
/// stored row numbers. Such a key counts as seen once, in the last step. A table and its source
/// must have the same dim and row format. Throws UserError unless the checkpoint has the tables of
/// `stored.spec`.
void load_tables(embedding::DistributedTables& tables, const StoredTables& stored,
                 const io::StoredCheckpoint* from, comm::Group& group);

/// Completes the tables in `tensors`, the tensors of a checkpoint. Pieces of a table are joined
/// (join_pieces). A table with only its updated rows gets all its rows. Rows that are not stored
/// get their initial values, and "embedding.<table>.rows" is removed.
void complete_tables(const embedding::PackSpec& spec, std::map<std::string, at::Tensor>& tensors);

}  // namespace dovetail::train
