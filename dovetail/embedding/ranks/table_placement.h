#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/embedding/pack/table.h"

namespace dovetail::embedding {

/// Distribution of a table over n ranks.
///   kRowWise     Row i is on rank i mod n, as local row i div n. A key of a hashed table is on
///                rank key mod n. Each rank may have 1/n of the table's maximum rows. Each rank
///                pools its rows of a bag, and the partial sums are added in rank order.
///   kTableWise   The whole table is on one rank.
///   kColumnWise  Every rank has all rows, each with a range of columns.
///   kReplicated  The whole table is on every rank. Lookups are local, and every rank makes every
///                update.
enum class Sharding { kRowWise, kTableWise, kColumnWise, kReplicated };

/// Returns "row", "table", "column" or "replicated".
std::string_view name(Sharding sharding);
/// Inverse of name(). Throws UserError for another name, listing the valid names.
Sharding parse_sharding(std::string_view text);

struct PlacedTable {
  Sharding sharding = Sharding::kReplicated;
  int64_t rank = 0;  ///< for kTableWise: the rank that holds the table
  /// Floats of rows that a sample is expected to read: dim times the expected ids of a sample.
  double volume = 1;
};

/// Tables with one lookup operation, one exchange and one optimizer for all of their rows.
struct PlacedPack {
  std::vector<int64_t> tables;  ///< ascending
  Sharding sharding = Sharding::kReplicated;
  bool hashed = false;  ///< hashed tables have packs of their own
  double volume = 0;
  /// A group's packs are gathered while the packs of the previous group are exchanged.
  int64_t group = 0;
};

struct TablePlacement {
  int64_t ranks = 1, groups = 1;
  std::vector<PlacedTable> tables;
  std::vector<PlacedPack> packs;  ///< in the order of their groups
};

struct PlacementOptions {
  int64_t ranks = 1;
  /// Sharding of all tables; nullopt: chosen for each table.
  std::optional<Sharding> sharding = {};
  bool packing = true;                      ///< false: every table is its own pack
  int64_t groups = 1;                       ///< at most the number of tables
  std::vector<double> ids_per_sample = {};  ///< expected ids of each feature; empty: 1 each
};

/// Makes a plan in four passes. Each pass is a function of the plan before it.
/// 1. Sharding. `options.sharding`, if set, applies to all tables. Otherwise a table is cut if it
///    exceeds one rank's share of volume or bytes: nothing else balances it. It is cut by columns
///    if the optimizer and the dimension allow it. The bytes on the wire then equal those for a
///    whole table. Otherwise it is cut by rows. That costs n times the bytes, since every rank
///    sends its part of every bag. A hashed table stays whole: cut in parts, it would refuse and
///    evict different keys. Whole tables are placed by LPT (longest processing time): the largest
///    volume first, to the rank with the smallest load. Replication is never chosen. Its exchange
///    is n / 2 times a whole table's, and every rank makes every update.
/// 2. Packing. Tables form one pack if they share the sharding and the optimizer with its numbers.
///    Hashed tables are packed apart from others. All tables have one dtype. Sums, means and
///    dimensions mix within a pack.
/// 3. Splitting. A pack whose volume exceeds the mean is split into parts of about the mean. While
///    there are fewer packs than groups, the largest divisible pack is halved.
/// 4. Grouping. The packs go to groups: the largest volume first, to the group with the smallest
///    load.
///
/// Throws UserError for Pooling::kNone, which only a single PackedTables supports. Throws UserError
/// for column-wise sharding of
/// - tables with fewer than 4 columns a rank,
/// - hashed tables,
/// - tables with row-wise Adagrad, which has one state for a whole row,
/// - MXFP8 rows, which have one scale for 32 elements.
TablePlacement place_tables(const PackSpec& spec, const PlacementOptions& options);

/// Groups the tables by optimizer, in the order of each optimizer's first table. Each group may be
/// looked up as one.
std::vector<std::vector<int64_t>> tables_by_optimizer(const PackSpec& spec);

/// Returns the features that look into a pack's tables, ascending.
std::vector<int64_t> features_of(const PackSpec& spec, const PlacedPack& pack);

/// Returns the part of a table that `rank` holds. A row-wise part may have 0 rows. A table-wise
/// table must be on `rank`.
TableSpec local_table(const PackSpec& spec, const TablePlacement& plan, int64_t table,
                      int64_t rank);

/// Returns the tables of a pack that `rank` holds, and the features that look into them. `features`
/// receives the numbers of these features in `spec`.
PackSpec local_spec(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
                    int64_t rank, std::vector<int64_t>& features);

/// Returns the first column of each feature in the output of a whole collection, features side by
/// side. The last element is the number of columns.
std::vector<int64_t> whole_columns(const PackSpec& spec);

/// Returns the maximum bytes of rows and state that `rank` holds of a pack.
int64_t bytes_on(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
                 int64_t rank);

/// Formats a plan for the terminal, one line for each pack. A line has tables, sharding, group,
/// optimizer, rate, share of the volume and bytes on each rank.
std::string print(const PackSpec& spec, const TablePlacement& plan);
nlohmann::ordered_json to_json(const PackSpec& spec, const TablePlacement& plan);

}  // namespace dovetail::embedding
