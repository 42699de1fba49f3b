#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/embedding/pack/table.h"

namespace dovetail::embedding {

/// How a table lies on n ranks.
///   kRowWise     row i on rank i mod n, as its row i div n; a key without a fixed vocabulary on
///   rank key mod n, which
///                may have an n-th of the table's most rows. Each rank pools what it has of a bag;
///                the parts are added in the order of ranks.
///   kTableWise   whole, on one rank.
///   kColumnWise  all rows on every rank, a range of columns on each.
///   kReplicated  whole, on every rank: lookups stay at home, every rank makes every update.
enum class Sharding { kRowWise, kTableWise, kColumnWise, kReplicated };

/// "row", "table", "column", "replicated".
std::string_view name(Sharding sharding);
/// The inverse. Throws UserError for another name, listing the valid ones.
Sharding parse_sharding(std::string_view text);

struct PlannedTable {
  Sharding sharding = Sharding::kReplicated;
  int64_t rank = 0;  ///< of kTableWise: who holds it
  double volume =
      1;  ///< dim times the ids that a sample is expected to have: floats of rows that it reads
};

/// Tables whose lookups are one operation and one exchange, and whose rows have one optimizer.
struct PlannedPack {
  std::vector<int64_t> tables;  ///< ascending
  Sharding sharding = Sharding::kReplicated;
  bool hashed = false;  ///< tables without a fixed vocabulary, which share no pack with others
  double volume = 0;
  int64_t group =
      0;  ///< packs of one group are gathered while those of the group before are exchanged
};

struct EmbeddingPlan {
  int64_t ranks = 1, groups = 1;
  std::vector<PlannedTable> tables;
  std::vector<PlannedPack> packs;  ///< in the order of their groups
};

struct PlanOptions {
  int64_t ranks = 1;
  std::optional<Sharding> sharding = {};    ///< of all tables; none: chosen for each
  bool packing = true;                      ///< off: every table is a pack
  int64_t groups = 1;                       ///< no more than there are tables
  std::vector<double> ids_per_sample = {};  ///< expected, of each feature; empty: 1 each
};

/// The passes in their order, each a function of the plan before it:
/// 1. Sharding. Tables as `options` say. Else a table that is more than one rank's share of the
/// volume or of the bytes
///    is cut, since no other placement balances it: by columns where the optimizer and the
///    dimension allow it (the bytes on the wire stay those of a whole table), else by rows (n times
///    those, for every rank sends its part of every bag). A hashed table stays whole, for in parts
///    of one other keys would be refused and evicted. What is whole: the largest volume first to
///    the rank with the least (LPT). Replicated is never chosen: its exchange is n / 2 times a
///    whole table's, and every rank makes every update.
/// 2. Packing. Tables that lie alike, all hashed or none, and have the same optimizer with the same
/// numbers are one
///    pack. All tables have one dtype, and sums, means and dimensions mix within a pack.
/// 3. Splitting. A pack whose volume exceeds the mean is split into parts of about the mean; while
/// there are fewer
///    packs than groups the largest that can be is halved.
/// 4. Grouping. The largest volume first to the group with the least.
/// Throws UserError for column-wise tables of fewer than 4 columns a rank, hashed ones, under
/// row-wise Adagrad, whose state is of the whole row, or in MXFP8, whose scales are of 32 elements;
/// and for Pooling::kNone, which is of one PackedTables alone.
EmbeddingPlan make_plan(const PackSpec& spec, const PlanOptions& options);

/// The tables of each optimizer, in the order of the first of each: what may be looked up as one.
std::vector<std::vector<int64_t>> tables_by_optimizer(const PackSpec& spec);

/// The features that look into a pack's tables, ascending.
std::vector<int64_t> features_of(const PackSpec& spec, const PlannedPack& pack);

/// What `rank` holds of a table that is not whole elsewhere; of a row-wise one it may be no rows.
TableSpec local_table(const PackSpec& spec, const EmbeddingPlan& plan, int64_t table, int64_t rank);

/// The tables that `rank` holds of a pack, with the features that look into them; those that are
/// not the rank's are left out. `features` gets their numbers in `spec`.
PackSpec local_spec(const PackSpec& spec, const EmbeddingPlan& plan, const PlannedPack& pack,
                    int64_t rank, std::vector<int64_t>& features);

/// Where each feature's pooled rows begin in the output of a whole collection, features side by
/// side, and its columns.
std::vector<int64_t> whole_columns(const PackSpec& spec);

/// Bytes of rows and state that `rank` holds of a pack at most.
int64_t bytes_on(const PackSpec& spec, const EmbeddingPlan& plan, const PlannedPack& pack,
                 int64_t rank);

/// A table for the terminal: a line for each pack, with its tables, sharding, group, optimizer and
/// rate, share of the volume and bytes on each rank.
std::string print(const PackSpec& spec, const EmbeddingPlan& plan);
nlohmann::ordered_json to_json(const PackSpec& spec, const EmbeddingPlan& plan);

}  // namespace dovetail::embedding
