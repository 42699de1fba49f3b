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

/// Message to all ranks. Rank r gets `counts[r]` elements of `elements` (N), after the elements for
/// lower ranks.
struct Message {
  at::Tensor elements;
  std::vector<int64_t> counts;
};

/// Contents of a table or of a rank's part of it. `weight`: stored rows, (rows, stored_width) of
/// stored_type. `state`: (rows, state_per_row) float32.
struct TableContents {
  at::Tensor weight, state;
};

/// One pack of a plan on one rank: its part of the tables, and the messages of lookups and
/// gradients. It writes and reads messages; DistributedTables sends them. Jagged arguments have the
/// pack's features only. `y` and `gradient` are (samples, columns of the whole collection) float32.
class ShardedPack {
 public:
  /// `tiers` is for tables that do not fit in memory as a whole. `hashed` is for hashed tables; its
  /// numbers of rows and candidates refer to whole tables.
  ShardedPack(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
              int64_t rank, const comm::Payloads& payloads,
              const std::optional<TierOptions>& tiers = {}, const HashedOptions& hashed = {},
              Changes changes = Changes::kUntracked);

  /// Features of the pack, by their numbers in the whole collection.
  const std::vector<int64_t>& features() const { return features_; }
  /// Tables that are looked up and updated: the tables themselves or their fast tier.
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
  /// Returns the rank's own number of a table, or -1 if the rank does not hold it.
  int64_t local_table(int64_t table) const;

  /// Reads rows (n) int64, ascending, of this rank's part of its table `local`. Returns views if
  /// the rows are consecutive and there are no tiers. Call it between steps. Hashed tables are not
  /// supported.
  TableContents read(int64_t local, const at::Tensor& rows) const;
  void write(int64_t local, const at::Tensor& rows, const TableContents& contents);

  /// Marks the rows of an update. Call it within the step.
  void mark_changed(const std::vector<PooledGradient>& gradients);
  /// Marked rows: RowSet::kUpdated, or kChanged if changes are tracked. Hashed tables are not
  /// supported.
  const ChangedRows& marked(int64_t local, RowSet which) const {
    return (which == RowSet::kUpdated ? updated_ : changed_).at(static_cast<size_t>(local));
  }
  void forget_changes();

  /// Begins a step. While `training`, the rows of the ids in `received` come into the fast tier,
  /// and the ids become its slots. Otherwise tiers do not change. Keys of hashed tables become
  /// rows; new keys are admitted only while `training`.
  void begin(std::vector<Jagged>& received, bool training);
  /// Pools the rows of one batch of the step into this rank's columns of y.
  void pool_batch(const Jagged& batch, const at::Tensor& y) const;
  void prefetch(const std::vector<Jagged>& received) const;
  void end();

  /// Returns true with one rank. Then no messages are needed: pool directly into y, and update from
  /// the gradient.
  bool alone() const { return ranks_ == 1; }
  /// Returns true if pooled rows come from other ranks.
  bool exchanges_pooled() const { return !alone() && sharding_ != Sharding::kReplicated; }

  /// Writes the int32 words for each rank. A rank's words are, in this order:
  /// - the number of samples,
  /// - 1 with weights, otherwise 0,
  /// - the bag lengths of the rank's features,
  /// - ids as rows of the rank; two words for a key of a hashed table, the lower half first,
  /// - the bits of the weights.
  Message write_ids(const Jagged& batch) const;
  /// Reads the batch that each rank sent.
  std::vector<Jagged> read_ids(const at::Tensor& words, const std::vector<int64_t>& counts) const;

  /// Pools this rank's part of the bags that each rank sent.
  Message pool_received(const std::vector<Jagged>& received) const;
  /// Number of elements that each rank sends back to a rank with `samples` samples.
  std::vector<int64_t> pooled_counts(int64_t samples) const;
  /// Writes the parts of every rank into y: side by side, or added in rank order.
  void add_pooled(const at::Tensor& elements, const Jagged& batch, const at::Tensor& y) const;
  /// Pools bags of a replicated pack into y.
  void pool_replica(const Jagged& batch, const at::Tensor& y) const;

  /// Writes the gradient of a batch for every rank that holds rows for it.
  Message write_gradient(const Jagged& batch, const at::Tensor& gradient) const;
  std::vector<int64_t> gradient_counts(const std::vector<Jagged>& received) const;
  /// Reads the gradient that each rank sent.
  std::vector<PooledGradient> read_gradients(const at::Tensor& elements,
                                             const std::vector<Jagged>& received) const;

 private:
  /// Range of columns that is contiguous both in a rank's pooled rows and in the whole output.
  struct Run {
    int64_t whole, own, width;
  };
  /// Features and columns that one rank holds.
  struct Part {
    std::vector<int64_t> features;  ///< numbers within the pack, ascending
    std::vector<Run> runs;
    int64_t columns = 0;
  };

  Part make_part(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
                 int64_t rank) const;
  bool same_for_all() const {
    return sharding_ == Sharding::kRowWise || sharding_ == Sharding::kReplicated;
  }
  HashedOptions part_of(HashedOptions options) const;
  void write_id(int64_t id, int32_t* words) const;
  int64_t read_id(const int32_t* words) const;
  template <class Emit>
  void each_destination(int64_t feature, int64_t id, const Emit& emit) const;
  /// Divides a feature's columns by the sizes of its bags. `columns` are sums, or the gradient of
  /// means. Applies where ranks add partial bags.
  void scale_mean(const Jagged& batch, size_t feature, const at::Tensor& columns) const;
  at::Tensor own_columns(const Jagged& batch, const at::Tensor& gradient, const Part& part) const;

  Sharding sharding_;
  int64_t ranks_, rank_;
  comm::Payloads payloads_;
  std::vector<int64_t> features_;
  std::vector<int64_t> whole_tables_;  ///< collection-wide numbers of the rank's tables
  std::vector<int64_t> feature_rank_;  ///< for kTableWise: the rank that holds each feature's table
  std::vector<int64_t> feature_column_, feature_dim_;  ///< columns in the whole output
  /// Features with mean pooling whose sums are divided after the ranks' parts have been added.
  std::vector<bool> mean_by_samples_;
  std::optional<PackedTables> packed_;  ///< exactly one of packed_, tiers_ and hashed_ is set
  std::optional<TieredTables> tiers_;
  std::optional<HashedTables> hashed_;
  int64_t id_words_ = 1;
  bool training_ = false;  ///< mode of the current step
  std::vector<Part> parts_;
  std::vector<ChangedRows> updated_;  ///< one for each table of the rank; empty for hashed tables
  std::vector<ChangedRows> changed_;  ///< the same; empty if changes are not tracked
};

}  // namespace dovetail::embedding
