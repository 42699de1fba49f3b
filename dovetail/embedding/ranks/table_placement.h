#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/comm/all_to_all.h"
#include "dovetail/embedding/pack/table.h"

namespace dovetail::embedding {

/// Distribution of an embedding table over n ranks.
///   kRowWise     Row i is on rank i mod n, as the rank's row i div n. A key of a hashed table
///                (hashed.h) is on rank key mod n, and each rank may have 1/n of the table's
///                maximum rows. Each rank sums its rows of a bag. These partial sums are then
///                added in rank order.
///   kTableWise   The whole table is on one rank.
///   kColumnWise  Every rank has all rows, but only a range of their columns.
///   kReplicated  The whole table is on every rank. Lookups are local, and every rank makes every
///                update.
enum class Sharding { kRowWise, kTableWise, kColumnWise, kReplicated };

/// Returns "row", "table", "column" or "replicated".
std::string_view name(Sharding sharding);
/// Inverse of name(). Throws UserError for another name, listing the valid names.
Sharding parse_sharding(std::string_view text);

/// Rows of a table that ranks send each other in a step.
///   kBags  One pooled row for each bag. The rank with the table's rows pools them. A bag of any
///   size
///          costs the same, also an empty one. In backward, it gets the gradient of each pooled
///          row.
///   kRows  Each distinct row of a rank's samples once. This rank pools them. In backward, it sums
///          the gradients of a row and sends one sum. So the bytes do not depend on empty bags and
///          repeated ids.
enum class Transfer { kBags, kRows };

/// Returns "bags" or "rows".
std::string_view name(Transfer transfer);
/// Inverse of name(). Throws UserError for another name, listing the valid names.
Transfer parse_transfer(std::string_view text);

/// Ids of a batch, as measured. They are the means over ranks of one rank's part of the batch.
struct MeasuredIds {
  double samples = 0;
  std::vector<double> distinct;  ///< number of distinct ids of each table
};

/// Place of one table.
struct PlacedTable {
  Sharding sharding = Sharding::kReplicated;
  int64_t rank = 0;  ///< for kTableWise: the rank that holds the table
  /// Expected number of floats that one sample reads from the table: dim times the expected number
  /// of the sample's ids.
  double volume = 1;
  Transfer transfer = Transfer::kBags;
  /// Bytes that a rank is expected to send to the others in a step, with each Transfer: the mean
  /// over ranks. Headers of messages and the occurrences that tiers count are left out. Both are 0
  /// without measured ids.
  double bags_bytes = 0, rows_bytes = 0;
};

/// Pack: tables with one lookup operation, one exchange between ranks and one optimizer for all of
/// their rows.
struct PlacedPack {
  std::vector<int64_t> tables;  ///< table numbers in the collection, ascending
  Sharding sharding = Sharding::kReplicated;
  bool hashed = false;  ///< true: all its tables are hashed; false: none is
  Transfer transfer = Transfer::kBags;
  double volume = 0;  ///< sum of its tables' volumes
  /// Number of the pack's group. While the packs of one group are looked up, the pooled rows of the
  /// previous group are sent between ranks.
  int64_t group = 0;
};

/// Plan: distribution of a collection's tables over ranks.
struct TablePlacement {
  int64_t ranks = 1, groups = 1;  ///< number of ranks, number of groups (PlacedPack::group)
  std::vector<PlacedTable> tables;
  std::vector<PlacedPack> packs;  ///< in the order of their groups
};

/// Arguments of place_tables.
struct PlacementOptions {
  int64_t ranks = 1;  ///< number of ranks
  /// Sharding of all tables; nullopt: place_tables chooses one for each table.
  std::optional<Sharding> sharding = {};
  /// Sharding of each table, in place of `sharding`. Nullopt, also for tables beyond its end:
  /// `sharding` applies.
  std::vector<std::optional<Sharding>> table_sharding = {};
  int64_t rank_bytes = 0;  ///< maximum bytes of rows and state on each rank; 0: unlimited
  bool packing = true;     ///< false: every pack has only one table
  int64_t groups = 1;      ///< number of groups, at most the number of tables
  std::vector<double> ids_per_sample = {};  ///< expected ids of each feature; empty: 1 each
  /// Transfer of all tables; nullopt: place_tables chooses one for each table, from `measured`.
  std::optional<Transfer> transfer = Transfer::kBags;
  std::optional<MeasuredIds> measured = {};
  comm::Payloads payloads = {};  ///< number formats of the transfers
};

/// Makes a plan for n ranks in five passes. Each pass is a function of the plan before it.
///
/// Pass 1, sharding. On one rank, every table is whole. Otherwise tables with a sharding in the
/// options get it. For each other table, the first
/// case that holds decides. A table is large if its volume or its bytes exceed 1/n of the total
/// over all tables.
/// - A hashed table stays whole here. Each part of a cut one has limits of its own. So it may
///   refuse and evict other keys.
/// - A table that is not large stays whole.
/// - A large table is cut by columns if its optimizer, row format and dimension allow it. The ranks
///   then exchange as many bytes as for a whole table.
/// - Any other large table is cut by rows. The ranks exchange n times the bytes, since every rank
///   sends its part of every bag.
///
/// Whole tables are placed by LPT (longest processing time) for two loads, volume and bytes. Both
/// are relative to the mean over ranks. A table counts by its larger load. In falling order, each
/// one goes to the rank whose larger load stays least.
///
/// Then further tables are cut until each rank has balanced bytes, and at most `rank_bytes`.
/// Balanced bytes are at most 1.1 times the mean, or less than 1 MiB above it. Each cut takes the
/// largest whole table of the rank with the maximum bytes. If it has none, its largest table with
/// uneven columns is cut by rows. Replication is never chosen: it would send n / 2 times the bytes
/// for a whole table, and every rank would make every update.
///
/// Pass 2, transfer. Tables get the Transfer of the options. Without one, each table gets the one
/// with fewer expected bytes. The choice depends on no other table. So results do not depend on
/// packing and groups.
///
/// Pass 3, packing. Tables form one pack if they share sharding and transfer, and the optimizer
/// with its numbers. A pack has only hashed tables, or none. All tables have one row format. A pack
/// may mix sums, means and dimensions. Without `options.packing`, every table is its own pack, and
/// pass 4 is skipped.
///
/// Pass 4, splitting. A pack with one table cannot be split. The tables of a pack are dealt to its
/// parts in order of falling volume. Each one goes to the part that then has the least volume on a
/// rank. So the parts are balanced within each rank.
/// - First, a pack whose volume exceeds the mean over packs is split into parts of about the mean.
/// - Then, while there are fewer packs than groups, the pack with the largest volume is halved.
///
/// Pass 5, grouping. The packs are put into groups in order of falling volume, by the same rule as
/// tables into parts.
///
/// Throws UserError if a rank needs more than `rank_bytes`. Throws UserError for Pooling::kNone,
/// which only a single PackedTables supports. Throws UserError for column-wise sharding of
/// - tables with fewer than 4 columns a rank,
/// - hashed tables,
/// - tables with row-wise Adagrad, which has one state for a whole row,
/// - MXFP8 rows, which have one scale for 32 elements.
TablePlacement place_tables(const PackSpec& spec, const PlacementOptions& options);

/// Returns lists of tables that have the same optimizer with the same numbers. The lists are in the
/// order of their first tables. The tables of a list may form one pack.
std::vector<std::vector<int64_t>> tables_by_optimizer(const PackSpec& spec);

/// Returns the features that look into a pack's tables, ascending.
std::vector<int64_t> features_of(const PackSpec& spec, const PlacedPack& pack);

/// Returns the part of a table that `rank` holds, as a table with a slice. A row-wise part may have
/// 0 rows. A table-wise table must be on `rank`.
TableSpec local_table(const PackSpec& spec, const TablePlacement& plan, int64_t table,
                      int64_t rank);

/// Returns a pack as `rank` holds it: the parts of its tables that are on `rank`, and the features
/// that look into them. A part without rows gets one row, which no id reaches. `features` receives
/// the numbers of these features in `spec`.
PackSpec local_spec(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
                    int64_t rank, std::vector<int64_t>& features);

/// Returns the first column of each feature in the output of a whole collection, which has the
/// features side by side. One more element follows: the number of columns.
std::vector<int64_t> whole_columns(const PackSpec& spec);

/// Returns the bytes that a pack's rows and optimizer state take on `rank`. For hashed tables,
/// this is the maximum that they may take.
int64_t bytes_on(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
                 int64_t rank);

/// Formats a plan for the terminal, one line for each pack. A line has group, sharding, numbers of
/// tables and features, optimizer and learning rate. The transfer follows. Measured ids
/// add the expected megabytes that a rank sends in a step, with both transfers. A line ends with
/// the pack's percentage of the total volume and its megabytes on each rank.
std::string print(const PackSpec& spec, const TablePlacement& plan);
/// Returns the plan as JSON, with its packs and their tables.
nlohmann::ordered_json to_json(const PackSpec& spec, const TablePlacement& plan);

}  // namespace dovetail::embedding
