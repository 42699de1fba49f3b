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

/// What goes to every rank: elements [counts[0] + ... + counts[r-1], ... + counts[r]) of `elements`
/// (N) to rank r.
struct Message {
  at::Tensor elements;
  std::vector<int64_t> counts;
};

/// All of a table, or a rank's part of it: rows as they are stored, (rows, stored_width) of
/// stored_type, and state (rows, state_per_row) float32.
struct TableContents {
  at::Tensor weight, state;
};

/// One pack of a plan on one rank: its part of the tables, and the messages of a lookup and its
/// gradient, written and read. Communication itself is not here. Jagged batches that are passed in
/// are the pack's own features; y and gradient (samples, columns of the whole collection) float32.
class ShardedPack {
 public:
  /// With `tiers` for tables that are not in memory as a whole. `hashed` is read of tables without
  /// a fixed vocabulary: what it says of rows and candidates is for whole tables.
  ShardedPack(const PackSpec& spec, const EmbeddingPlan& plan, const PlannedPack& pack,
              int64_t rank, const Payloads& payloads, const std::optional<TierOptions>& tiers = {},
              const HashedOptions& hashed = {}, Changes changes = Changes::kUntracked);

  /// Numbers in the whole collection.
  const std::vector<int64_t>& features() const { return features_; }
  /// What is looked up and updated: the tables, or the fast tier of them.
  PackedTables& tables() {
    return tiers_ ? tiers_->fast() : hashed_ ? hashed_->packed() : *packed_;
  }
  const PackedTables& tables() const {
    return tiers_ ? tiers_->fast() : hashed_ ? hashed_->packed() : *packed_;
  }
  const TieredTables* tiers() const { return tiers_ ? &*tiers_ : nullptr; }  ///< or null
  HashedTables* hashed() { return hashed_ ? &*hashed_ : nullptr; }           ///< or null
  const HashedTables* hashed() const { return hashed_ ? &*hashed_ : nullptr; }
  /// The rank's number of a table, or -1.
  int64_t local_table(int64_t table) const;

  /// Rows (n) int64, ascending, of the rank's part of its table `local`, a view where they follow
  /// one another and there are no tiers. Between steps, and not of hashed tables.
  TableContents read(int64_t local, const at::Tensor& rows) const;
  void write(int64_t local, const at::Tensor& rows, const TableContents& contents);

  /// Marks the rows of an update, within its step.
  void mark_changed(const std::vector<PooledGradient>& gradients);
  /// The rows of RowSet::kUpdated, or of kChanged where changes are tracked. Not of hashed tables.
  const ChangedRows& marked(int64_t local, RowSet which) const {
    return (which == RowSet::kUpdated ? updated_ : changed_).at(static_cast<size_t>(local));
  }
  void forget_changes();

  /// A step begins. While `training`, rows of the ids in `received` come into the fast tier and ids
  /// become its slots; otherwise the tiers stay as they are. Keys of hashed tables become rows; new
  /// ones are admitted while `training`.
  void begin(std::vector<Jagged>& received, bool training);
  /// Pools the rows of a batch of the step into this rank's columns of y.
  void pool_batch(const Jagged& batch, const at::Tensor& y) const;
  void prefetch(const std::vector<Jagged>& received) const;
  void end();

  bool alone() const {
    return ranks_ == 1;
  }  ///< no messages at all: pool_into y and update from the gradient
  /// Whether pooled rows come from other ranks.
  bool exchanges_pooled() const { return !alone() && sharding_ != Sharding::kReplicated; }

  /// int32 words for each rank: samples, whether there are weights, the lengths of its features'
  /// bags, its rows of their ids (of hashed tables two words, a key's lower half first), the
  /// weights' bits.
  Message write_ids(const Jagged& batch) const;
  /// What each rank sent.
  std::vector<Jagged> read_ids(const at::Tensor& words, const std::vector<int64_t>& counts) const;

  /// This rank's part of the bags that each rank sent.
  Message pool_received(const std::vector<Jagged>& received) const;
  std::vector<int64_t> pooled_counts(
      int64_t samples) const;  ///< of what comes back to a rank with this many samples
  /// The parts of every rank into y: side by side, or added in the order of ranks.
  void add_pooled(const at::Tensor& elements, const Jagged& batch, const at::Tensor& y) const;
  /// Bags of a replicated pack into y.
  void pool_replica(const Jagged& batch, const at::Tensor& y) const;

  /// The gradient of a batch for every rank that holds rows of it.
  Message write_gradient(const Jagged& batch, const at::Tensor& gradient) const;
  std::vector<int64_t> gradient_counts(const std::vector<Jagged>& received) const;
  /// Of each rank.
  std::vector<PooledGradient> read_gradients(const at::Tensor& elements,
                                             const std::vector<Jagged>& received) const;

 private:
  /// Columns of a rank's pooled rows that follow one another also in the whole output.
  struct Run {
    int64_t whole, own, width;
  };
  /// What a rank holds.
  struct Part {
    std::vector<int64_t> features;  ///< of the pack's own numbering, ascending
    std::vector<Run> runs;
    int64_t columns = 0;
  };

  Part make_part(const PackSpec& spec, const EmbeddingPlan& plan, const PlannedPack& pack,
                 int64_t rank) const;
  bool same_for_all() const {
    return sharding_ == Sharding::kRowWise || sharding_ == Sharding::kReplicated;
  }
  HashedOptions part_of(HashedOptions options) const;
  void write_id(int64_t id, int32_t* words) const;
  int64_t read_id(const int32_t* words) const;
  template <class Emit>
  void each_destination(int64_t feature, int64_t id, const Emit& emit) const;
  /// A feature's columns of sums, or of the gradient of its means, times 1 / the sizes of its bags,
  /// where ranks add parts of bags.
  void scale_mean(const Jagged& batch, size_t feature, const at::Tensor& columns) const;
  at::Tensor own_columns(const Jagged& batch, const at::Tensor& gradient, const Part& part) const;

  Sharding sharding_;
  int64_t ranks_, rank_;
  Payloads payloads_;
  std::vector<int64_t> features_;
  std::vector<int64_t> whole_tables_;  ///< the collection's numbers of the rank's tables
  std::vector<int64_t> feature_rank_;  ///< kTableWise
  std::vector<int64_t> feature_column_, feature_dim_;  ///< in the whole output
  std::vector<bool>
      mean_by_samples_;  ///< features whose sums become means where they are put together
  std::optional<PackedTables> packed_;  ///< or `tiers_` or `hashed_`
  std::optional<TieredTables> tiers_;
  std::optional<HashedTables> hashed_;
  int64_t id_words_ = 1;
  bool training_ = false;  ///< the step under way
  std::vector<Part> parts_;
  std::vector<ChangedRows> updated_;  ///< one a table of the rank; none for hashed tables
  std::vector<ChangedRows> changed_;  ///< the same; empty where changes are not tracked
};

}  // namespace dovetail::embedding
