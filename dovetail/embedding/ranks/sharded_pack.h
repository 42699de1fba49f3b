#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "dovetail/comm/all_to_all.h"
#include "dovetail/embedding/hashed/hashed.h"
#include "dovetail/embedding/pack/changed_rows.h"
#include "dovetail/embedding/pack/lookup.h"
#include "dovetail/embedding/ranks/table_placement.h"
#include "dovetail/embedding/tiers/tiered.h"

namespace dovetail::embedding {

/// Messages to all ranks, in one tensor `elements` (N). Rank r gets counts[r] of its elements,
/// which follow the elements for lower ranks.
struct Message {
  at::Tensor elements;
  std::vector<int64_t> counts;
};

/// Rows of a table or of a rank's part of it. `weight`: stored rows, (rows, stored_width) of
/// stored_type (row_format.h). `state`: their optimizer state, (rows, state_per_row) float32.
struct TableContents {
  at::Tensor weight, state;
};

/// One pack of a plan (TablePlacement) on one rank. It holds the rank's part of the pack's tables.
/// It also writes and reads the messages of lookups and gradients between ranks; DistributedTables
/// sends them.
///
/// A rank looks up its own samples. It sends their ids to the ranks that hold the rows, which send
/// pooled rows back. Later it sends the gradient of the pooled rows to the same ranks. Arguments:
/// - `batch`: a batch of this rank's own samples. It has the pack's features only.
/// - `received`: element r is the batch from rank r. Its ids are rows of this rank's tables.
/// - `y` and `gradient`: (samples, columns of the whole collection) float32.
class ShardedPack {
 public:
  /// `tiers`, if set, is for tables that do not fit in memory as a whole. `hashed` is for hashed
  /// tables; its numbers of rows and candidates refer to whole tables.
  ShardedPack(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
              int64_t rank, const comm::Payloads& payloads,
              const std::optional<TierOptions>& tiers = {}, const HashedOptions& hashed = {},
              Changes changes = Changes::kUntracked);

  /// Returns the features of the pack, by their numbers in the whole collection.
  const std::vector<int64_t>& features() const { return features_; }
  /// Returns the tables in memory that are looked up and updated. With tiers, this is their fast
  /// tier.
  PackedTables& tables() {
    return tiers_ ? tiers_->fast() : hashed_ ? hashed_->packed() : *packed_;
  }
  const PackedTables& tables() const {
    return tiers_ ? tiers_->fast() : hashed_ ? hashed_->packed() : *packed_;
  }
  /// Returns null without tiers.
  const TieredTables* tiers() const { return tiers_ ? &*tiers_ : nullptr; }
  /// Returns null if the tables are not hashed.
  HashedTables* hashed() { return hashed_ ? &*hashed_ : nullptr; }
  const HashedTables* hashed() const { return hashed_ ? &*hashed_ : nullptr; }
  /// Returns the number that table `table` of the collection has on this rank (its local number).
  /// Returns -1 if the rank does not hold the table.
  int64_t local_table(int64_t table) const;

  /// Reads rows of the table with local number `local`. `rows` (n) int64, ascending, are row
  /// numbers in this rank's part. Returns views if the rows are consecutive and there are no tiers.
  /// Call it between steps. Hashed tables are not supported.
  TableContents read(int64_t local, const at::Tensor& rows) const;
  /// Inverse of read. Marks the rows for RowSet::kUpdated.
  void write(int64_t local, const at::Tensor& rows, const TableContents& contents);

  /// Marks the rows that an update with these gradients has changed. Call it within the step.
  void mark_changed(const std::vector<PooledGradient>& gradients);
  /// Returns the marked rows in RowSet::kUpdated or, if changes are tracked, in kChanged. Hashed
  /// tables are not supported.
  const ChangedRows& marked(int64_t local, RowSet which) const {
    return (which == RowSet::kUpdated ? updated_ : changed_).at(static_cast<size_t>(local));
  }
  /// Empties RowSet::kChanged.
  void forget_changes();

  /// Begins a step, and replaces the ids in `received` by rows of tables().
  /// - With tiers and `training`, the ids' rows come into the fast tier. The ids become slots.
  /// - With tiers but without `training`, ids and tiers do not change.
  /// - Keys of hashed tables become row numbers. New keys are admitted only with `training`.
  void begin(std::vector<Jagged>& received, bool training);
  /// Pools one batch that `begin` has prepared. y has the columns of tables(): without messages
  /// (see alone), all columns of the collection.
  void pool_batch(const Jagged& batch, const at::Tensor& y) const;
  /// With tiers, starts to read the rows of a later step from the slow tier.
  void prefetch(const std::vector<Jagged>& received) const;
  /// Ends the step.
  void end();

  /// Returns true if there is one rank. Then no messages are needed: pool_batch writes directly
  /// into y of the whole collection, and the update reads its gradient.
  bool alone() const { return ranks_ == 1; }
  /// Returns true if this rank gets pooled rows from other ranks.
  bool exchanges_pooled() const { return !alone() && sharding_ != Sharding::kReplicated; }

  /// Writes the ids of a batch for the ranks that hold their rows. The message to a rank has int32
  /// words, in this order:
  /// - the number of samples,
  /// - 1 if the ids have weights, otherwise 0,
  /// - the length of each bag, for the features whose tables the rank holds,
  /// - the ids as row numbers on that rank, or two words for a hashed key (lower half first),
  /// - the bits of the weights.
  Message write_ids(const Jagged& batch) const;
  /// Returns `received`: the batch of each rank, from the words that this rank got. `counts` are
  /// the numbers of words from each rank.
  std::vector<Jagged> read_ids(const at::Tensor& words, const std::vector<int64_t>& counts) const;

  /// Pools the bags that each rank sent, from this rank's rows. Returns the messages with the
  /// pooled rows.
  Message pool_received(const std::vector<Jagged>& received) const;
  /// Returns how many elements each rank sends back to a rank with `samples` samples.
  std::vector<int64_t> pooled_counts(int64_t samples) const;
  /// Writes the pooled rows of `batch` into y. `elements` are the messages of pool_received from
  /// all ranks. Parts of different ranks have different columns; row-wise parts are added in rank
  /// order.
  void add_pooled(const at::Tensor& elements, const Jagged& batch, const at::Tensor& y) const;
  /// Pools a batch of this rank's own samples into y. The pack must be replicated.
  void pool_replica(const Jagged& batch, const at::Tensor& y) const;

  /// Writes the gradient of a batch's pooled rows for every rank that holds rows of it.
  Message write_gradient(const Jagged& batch, const at::Tensor& gradient) const;
  /// Returns how many elements of write_gradient this rank gets from each rank.
  std::vector<int64_t> gradient_counts(const std::vector<Jagged>& received) const;
  /// Returns the gradient from each rank, with the batch that it belongs to. `elements` are the
  /// messages of write_gradient from all ranks.
  std::vector<PooledGradient> read_gradients(const at::Tensor& elements,
                                             const std::vector<Jagged>& received) const;

 private:
  /// Range of `width` columns that is contiguous in two places. In a rank's pooled rows, it starts
  /// at column `own`. In the output of the whole collection, it starts at column `whole`.
  struct Run {
    int64_t whole, own, width;
  };
  /// Features and columns that one rank pools.
  struct Part {
    std::vector<int64_t> features;  ///< numbers within the pack, ascending
    std::vector<Run> runs;          ///< places of its columns in the whole output
    int64_t columns = 0;            ///< number of its columns
  };

  /// Returns what `rank` pools of the pack.
  Part make_part(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
                 int64_t rank) const;
  /// Returns true if every rank gets the same gradient message.
  bool same_for_all() const {
    return sharding_ == Sharding::kRowWise || sharding_ == Sharding::kReplicated;
  }
  HashedOptions part_of(HashedOptions options) const;
  void write_id(int64_t id, int32_t* words) const;
  int64_t read_id(const int32_t* words) const;
  /// Calls emit(rank, id on that rank) for each rank that holds a part of the id's row.
  template <class Emit>
  void each_destination(int64_t feature, int64_t id, const Emit& emit) const;
  /// Divides a feature's columns by the sizes of its bags. `columns` are sums, or the gradient of
  /// means. Does nothing unless mean_by_samples_[feature].
  void scale_mean(const Jagged& batch, size_t feature, const at::Tensor& columns) const;
  at::Tensor own_columns(const Jagged& batch, const at::Tensor& gradient, const Part& part) const;

  Sharding sharding_;
  int64_t ranks_, rank_;
  comm::Payloads payloads_;
  std::vector<int64_t> features_;
  std::vector<int64_t> whole_tables_;  ///< collection-wide numbers of the rank's tables
  std::vector<int64_t> feature_rank_;  ///< for kTableWise: the rank that holds each feature's table
  /// First column of each feature in the whole output, and number of its columns.
  std::vector<int64_t> feature_column_, feature_dim_;
  /// True for features whose mean is taken after ranks' sums have been added (kRowWise).
  std::vector<bool> mean_by_samples_;
  std::optional<PackedTables> packed_;  ///< exactly one of packed_, tiers_ and hashed_ is set
  std::optional<TieredTables> tiers_;
  std::optional<HashedTables> hashed_;
  int64_t id_words_ = 1;              ///< int32 words of an id in a message
  bool training_ = false;             ///< mode of the current step
  std::vector<Part> parts_;           ///< part of each rank; empty with one rank
  std::vector<ChangedRows> updated_;  ///< one for each table of the rank; empty for hashed tables
  std::vector<ChangedRows> changed_;  ///< the same; empty also if changes are not tracked
};

}  // namespace dovetail::embedding
