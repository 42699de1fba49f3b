#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "dovetail/comm/all_to_all.h"
#include "dovetail/embedding/hashed/hashed.h"
#include "dovetail/embedding/pack/changed_rows.h"
#include "dovetail/embedding/pack/lookup.h"
#include "dovetail/embedding/ranks/message.h"
#include "dovetail/embedding/ranks/row_transfer.h"
#include "dovetail/embedding/ranks/table_placement.h"
#include "dovetail/embedding/tiers/tiered.h"

namespace dovetail::embedding {

/// Rows of a table, or of a rank's part of a table. `weight`: stored rows, (rows, stored_width) of
/// stored_type (row_format.h). `state`: optimizer state of these rows, (rows, state_per_row)
/// float32.
struct TableContents {
  at::Tensor weight, state;
};

/// Returns what each table of a pack needs at least on `rank`, as DistributedTables counts it.
std::vector<TableMemory> least_memory(const PackSpec& spec, const TablePlacement& plan,
                                      const PlacedPack& pack, int64_t rank,
                                      const TierOptions& tiers, const HashedOptions& hashed,
                                      Changes changes, SlotMemory memory);

/// One pack of a plan (TablePlacement) on one rank. It holds the rank's part of the pack's tables.
/// It also writes and reads the messages between ranks, for lookups and gradients.
/// DistributedTables sends these messages.
///
/// A rank looks up its own samples. With Transfer::kBags, it sends their ids to the ranks that hold
/// the rows. These ranks send pooled rows back. Later it sends the gradient of the pooled rows to
/// the same ranks. With Transfer::kRows, the messages are RowTransfer's (`transfer`). The
/// arguments of several functions have the same meaning:
/// - `batch`: a batch of this rank's own samples, with the pack's features only.
/// - `received`: element r is the batch of ids that rank r has sent, on the CPU. After `begin`, its
///   ids are rows of tables().
/// - `y` and `gradient`: (samples, columns of the whole collection) float32. The collection is all
///   tables of the model. They are on the device of tables().
///
/// Messages of ids are on the CPU. Messages of rows and gradients are on the device of tables().
class ShardedPack {
 public:
  /// `tiers`, if set, is for tables that do not fit in memory as a whole. `hashed` is for hashed
  /// tables. The numbers of rows and candidates in `hashed` are limits for whole tables. With
  /// row-wise sharding, each of n ranks gets 1/n of these limits. The rows lie in `memory`.
  /// `counted` is RowTransfer's.
  ShardedPack(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
              int64_t rank, const comm::Payloads& payloads,
              const std::optional<TierOptions>& tiers = {}, const HashedOptions& hashed = {},
              Changes changes = Changes::kUntracked, SlotMemory memory = {}, bool counted = false);

  /// Returns null with Transfer::kBags, and if there is only one rank.
  const RowTransfer* transfer() const { return transfer_ ? &*transfer_ : nullptr; }
  /// Returns the features of the pack, as feature numbers in the whole collection.
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
  const TieredTables* tiers() const {
    return tiers_ ? &*tiers_ : hashed_ ? hashed_->tiers() : nullptr;
  }
  /// Returns null if the tables are not hashed.
  HashedTables* hashed() { return hashed_ ? &*hashed_ : nullptr; }
  const HashedTables* hashed() const { return hashed_ ? &*hashed_ : nullptr; }
  /// Returns true if `begin` leaves ids as they are. They are row numbers of tables() already.
  bool takes_ids_as_they_are() const { return !tiers_ && !hashed_; }
  /// Returns the device on which `pool_batch` and `gather` take ids after `begin`. It is the device
  /// of tables(), unless a lookup without training still has to find their rows.
  at::Device ids_device() const {
    return (tiers_ || hashed_) && !training_ ? at::Device(at::kCPU) : tables().device();
  }
  /// Returns the number that table `table` of the collection has on this rank (its local number).
  /// Returns -1 if the rank does not hold the table.
  int64_t local_table(int64_t table) const;

  /// Reads rows of the table with local number `local`. `rows` (n) int64, ascending, are row
  /// numbers in this rank's part of the table. The result is on the CPU. It has views of the tables
  /// if the rows are consecutive, on the CPU and without tiers. Call it between steps. Hashed
  /// tables are not supported.
  TableContents read(int64_t local, const at::Tensor& rows) const;
  /// Inverse of `read`: sets the rows, and marks them as updated (RowSet::kUpdated).
  void write(int64_t local, const at::Tensor& rows, const TableContents& contents);

  /// Marks the rows that an update has changed. They are in RowSet::kUpdated then and, if changes
  /// are tracked, in kChanged. `batches` are on the CPU, with ids that `begin` has prepared. Call
  /// it within the step.
  void mark_changed(const std::vector<Jagged>& batches);
  /// Returns the marked rows of a table. `which` is RowSet::kUpdated or, if changes are tracked,
  /// kChanged. Hashed tables are not supported.
  const ChangedRows& marked(int64_t local, RowSet which) const {
    return (which == RowSet::kUpdated ? updated_ : changed_).at(static_cast<size_t>(local));
  }
  /// Empties RowSet::kChanged.
  void forget_changes();

  /// Begins a step, and replaces the ids in `received` by rows of tables().
  /// - With tiers and `training`, the rows are brought into the fast tier. Each id becomes the slot
  ///   of its row.
  /// - With hashed tables and `training`, new keys are admitted. Each key becomes the row number of
  ///   its row or, with tiers, the slot.
  /// - With tiers or hashed tables but without `training`, neither ids nor tables change.
  /// - With other tables, the ids are row numbers already.
  void begin(std::vector<Jagged>& received, bool training);
  /// The same for the ids of a RowTransfer. Each id counts with its occurrences.
  void begin(std::vector<RowTransfer::Received>& received, bool training);
  /// Returns rows of the table with local number `local`, (n, dim) float32 on the device of
  /// tables(). `ids` (n) int64 are prepared by `begin`, on ids_device().
  at::Tensor gather(int64_t local, const at::Tensor& ids) const;
  /// Pools one batch that `begin` has prepared, on ids_device(). y is on the device of tables(),
  /// and has their columns. If alone(), these are all columns of the collection.
  void pool_batch(const Jagged& batch, const at::Tensor& y) const;
  /// With tiers, starts to read the rows of a later step from the slow tier. `received` has the ids
  /// of that step, before `begin`.
  void prefetch(const std::vector<Jagged>& received) const;
  /// Ends the step.
  void end();

  /// Returns true if there is only one rank. No messages are needed then: pool_batch writes
  /// directly into the `y` of the whole collection, and the update reads its `gradient`.
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
  /// Returns `received`: the batch from each rank, decoded from the message words that this rank
  /// has received. `counts[r]` is the number of words from rank r.
  std::vector<Jagged> read_ids(const at::Tensor& words, const std::vector<int64_t>& counts) const;

  /// Pools the bags in `received` with this rank's rows. Returns the messages that send the pooled
  /// rows back to each rank.
  Message pool_received(const std::vector<Jagged>& received) const;
  /// Returns how many elements of pooled rows each rank sends to a rank that looks up `samples`
  /// samples.
  std::vector<int64_t> pooled_counts(int64_t samples) const;
  /// Writes the pooled rows of `batch` into y. `elements` are the messages that all ranks made with
  /// pool_received. With Sharding::kTableWise and kColumnWise, each rank's pooled rows fill columns
  /// of their own in y. With kRowWise, the ranks' partial sums for the same columns are added in
  /// rank order.
  void add_pooled(const at::Tensor& elements, const Jagged& batch, const at::Tensor& y) const;
  /// Pools a batch of this rank's own samples into y, without messages. The pack must be replicated
  /// (Sharding::kReplicated).
  void pool_replica(const Jagged& batch, const at::Tensor& y) const;

  /// Returns messages with the gradient of the pooled rows of `batch`. Each rank gets the columns
  /// that it pools.
  Message write_gradient(const Jagged& batch, const at::Tensor& gradient) const;
  /// Returns how many gradient elements this rank gets from each rank, if the ranks have sent the
  /// batches `received`.
  std::vector<int64_t> gradient_counts(const std::vector<Jagged>& received) const;
  /// Returns the gradient from each rank, together with the rank's batch in `received`. `elements`
  /// are the messages that all ranks made with write_gradient.
  std::vector<PooledGradient> read_gradients(const at::Tensor& elements,
                                             const std::vector<Jagged>& received) const;

 private:
  /// Range of columns that are consecutive both in a rank's pooled rows and in the output of the
  /// whole collection. `own` is its first column in the rank's pooled rows, `whole` its first
  /// column in the output. `width` is the number of columns.
  struct Run {
    int64_t whole, own, width;
  };
  /// Features and columns that one rank pools.
  struct Part {
    std::vector<int64_t> features;  ///< numbers within the pack, ascending
    std::vector<Run> runs;          ///< places of the rank's columns in the whole output
    int64_t columns = 0;            ///< number of the rank's columns
  };

  /// Returns the features and columns of the pack that `rank` pools.
  Part make_part(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
                 int64_t rank) const;
  /// Returns true if every rank gets the same gradient message.
  bool same_for_all() const {
    return sharding_ == Sharding::kRowWise || sharding_ == Sharding::kReplicated;
  }
  /// Calls emit(rank, id on that rank) for each rank that holds a part of the id's row.
  template <class Emit>
  void each_destination(int64_t feature, int64_t id, const Emit& emit) const;
  /// Divides a feature's columns by the sizes of its bags. `columns` are (samples, dim): the sums
  /// of the bags, or the gradient of their means. Does nothing unless mean_by_samples_[feature].
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
  /// For each feature, true if its mean is taken on the samples' rank, after the ranks' sums have
  /// been added. This is so for means with kRowWise.
  std::vector<bool> mean_by_samples_;
  std::optional<PackedTables> packed_;  ///< exactly one of packed_, tiers_ and hashed_ is set
  std::optional<TieredTables> tiers_;
  std::optional<HashedTables> hashed_;
  int64_t id_words_ = 1;     ///< int32 words of an id in a message
  bool training_ = false;    ///< `training` of the current step's `begin`
  std::vector<Part> parts_;  ///< part of each rank; empty with one rank
  std::optional<RowTransfer> transfer_;
  /// Rows in RowSet::kUpdated, for each of the rank's tables. Empty for hashed tables.
  std::vector<ChangedRows> updated_;
  /// Rows in RowSet::kChanged, for each of the rank's tables. Empty for hashed tables, and if
  /// changes are not tracked.
  std::vector<ChangedRows> changed_;
};

}  // namespace dovetail::embedding
