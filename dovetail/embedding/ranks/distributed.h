#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "dovetail/comm/exchange.h"
#include "dovetail/comm/group.h"
#include "dovetail/embedding/ranks/sharded_pack.h"
#include "dovetail/embedding/ranks/table_placement.h"

namespace dovetail::embedding {

/// The ids of a step and what became of them.
class TableStep {
 public:
  int64_t micro_batches() const { return micro_batches_; }

 private:
  friend class DistributedTables;
  struct InPack {
    std::vector<Jagged> own;  ///< of each micro-batch
    std::vector<int64_t> receive;
    Exchange::Pending ids;
    std::vector<Jagged> arrived;  ///< of each rank, until the step begins
    /// Of each micro-batch and rank, with the rows of this rank's tables for ids.
    std::vector<std::vector<Jagged>> received;
    std::vector<Exchange::Pending> pooled, gradients;   ///< of each micro-batch
    std::vector<std::vector<PooledGradient>> of_ranks;  ///< of each rank, its micro-batches
  };
  int64_t samples_ = 0, micro_batch_ = 1, micro_batches_ = 1;
  std::vector<InPack> packs_;
  std::vector<at::Tensor> pooled_;  ///< of each micro-batch
};

struct TableRows {
  at::Tensor rows;  ///< (n) int64, ascending: their numbers in the table
  TableContents contents;
};

/// Tables over the ranks of a group, as a plan says: each rank looks up its own samples and trains
/// on those of all.
///
/// A step goes through stages, so that a micro-batch's rows travel beside the dense part of the one
/// before, and the ids of a step beside the step before:
///
///     TableStep step = tables.start(batch, micro_batch, micro_batches);  // ids to the ranks that
///     hold their rows tables.begin(step);                          // they are there, and the rows
///     in the fast tier tables.gather(step, 0);                      // rows pooled where they are,
///     group by group, and sent back for (int64_t m = 0; m < micro_batches; ++m) {
///       const at::Tensor pooled = tables.wait(step, m);
///       if (m + 1 < micro_batches) tables.gather(step, m + 1);
///       ... forward and backward of pooled ...
///       tables.add_gradient(step, m, gradient);    // sent to where the rows are
///     }
///     tables.update(step);
///
/// All ranks make the same calls in the same order, also with no samples of their own. An update
/// merges the gradients of all micro-batches of all ranks in the order (rank, micro-batch): the
/// order of the samples of the whole batch, where rank r has the r-th part of it. So the rows' sums
/// have the bits of one rank's; what differs is what the pooled rows of row-wise bags (added over
/// ranks) and the dense part's sums round. Of one rank there are no messages.
class DistributedTables {
 public:
  /// All ranks together, with the same spec and plan; plan.ranks is the group's size. `group` is
  /// used by these tables alone. With `tiers`, its memory_bytes and step_rows are this rank's, and
  /// the memory is shared out over the packs by their bytes, but those of tables without a fixed
  /// vocabulary, to which `hashed` applies: they stay in memory. What marks updated rows and tracks
  /// changes, a bit for each row each, is taken from it.
  DistributedTables(PackSpec spec, EmbeddingPlan plan, std::shared_ptr<Group> group,
                    Payloads payloads = {}, const std::optional<TierOptions>& tiers = {},
                    const HashedOptions& hashed = {}, Changes changes = Changes::kUntracked);

  const PackSpec& spec() const { return spec_; }
  const EmbeddingPlan& plan() const { return plan_; }
  int64_t columns() const { return columns_; }

  /// `batch` has all features; micro-batch m is samples [m * micro_batch, (m + 1) * micro_batch) of
  /// it, as far as there are any. `micro_batch` and `micro_batches` are the same on all ranks.
  /// Throws UserError as check_jagged, on the rank whose batch it is. A step may start within the
  /// one before.
  TableStep start(const Jagged& batch, int64_t micro_batch, int64_t micro_batches);
  /// Between `start` and `begin`, within the step before: the slow tier begins to read what it will
  /// need.
  void prefetch(TableStep& step);
  /// After the step before has ended. A step that is not `training` ends without an update and
  /// leaves no trace: no key is admitted, no access is counted, and the fast tier stays as it is.
  void begin(TableStep& step, bool training = true);
  void gather(TableStep& step, int64_t micro_batch);
  /// (samples, columns) float32: the features side by side in their order.
  at::Tensor wait(TableStep& step, int64_t micro_batch);
  /// The gradient of what `wait` gave, float32; it must stay as it is until the step ends.
  void add_gradient(TableStep& step, int64_t micro_batch, const at::Tensor& gradient);
  /// Ends the step: one step of the optimizer with its gradients.
  void update(TableStep& step);
  /// Ends it without.
  void discard(TableStep& step);

  /// The pooled rows of a batch, between steps.
  at::Tensor lookup(const Jagged& batch);

  /// The general rate; a table with a rate of its own keeps its ratio to that.
  void set_lr(double lr);
  /// What a checkpoint has seen: updates, and steps that have ended, with or without one.
  void set_steps(int64_t updates, int64_t steps);

  bool is_hashed(int64_t table) const { return spec_.tables[static_cast<size_t>(table)].hashed; }
  /// Rows of [first, first + count) of a table with a fixed vocabulary put together on rank 0,
  /// copies or views; undefined tensors on the others. Between steps, all ranks together.
  TableRows read_rows(int64_t table, int64_t first, int64_t count, RowSet which) const;
  /// The inverse: rank 0's rows to every rank that holds some of them.
  void write_rows(int64_t table, const TableRows& rows);
  /// All rows at once.
  TableContents read(int64_t table) const;
  void write(int64_t table, const TableContents& contents);
  /// The same of a table without one; load throws UserError for more rows than it, or the rank's
  /// part of it, may have.
  KeyedRows read_keys(int64_t table, RowSet which = RowSet::kAll) const;
  void write_keys(int64_t table, const KeyedRows& contents);

  /// How many rows a set has, on every rank. All ranks together.
  int64_t num_rows(int64_t table, RowSet which) const;
  /// A checkpoint holds them.
  void forget_changes();

  Group::Traffic traffic() const { return group_->all_to_all_traffic(); }
  /// This rank's, sums over the packs; none without tiers.
  std::optional<TierCounters> tier_counters() const;
  /// Of this rank's hashed tables, replicated ones on rank 0 alone; none without any.
  std::optional<HashedCounters> hashed_counters() const;

 private:
  void receive(TableStep& step);
  void gather_group(TableStep& step, int64_t micro_batch, int64_t group);
  void end(TableStep& step);
  ShardedPack& pack_of(int64_t table) { return *packs_[pack_of_[static_cast<size_t>(table)]]; }
  const ShardedPack& pack_of(int64_t table) const {
    return *packs_[pack_of_[static_cast<size_t>(table)]];
  }
  /// Of rows [first, first + count) those that rank 0 gets from this one, by this rank's numbers:
  /// (n) int64, ascending.
  at::Tensor rows_sent(int64_t table, int64_t first, int64_t count, RowSet which) const;
  /// On rank 0, of each rank, `own`; zeros on the others.
  std::vector<int64_t> counts_of_ranks(int64_t own) const;
  /// On rank 0 the rows that the ranks have of `own` (n, ...), one rank after another,
  /// counts_of_ranks(n) in number; undefined on the others.
  at::Tensor to_rank_zero(const at::Tensor& own, const std::vector<int64_t>& counts) const;
  /// Of rank 0's tensor (n, ...), or none, how many rows it has; those of the others do not count.
  int64_t rows_of_rank_zero(const at::Tensor& own) const;
  /// The inverse of to_rank_zero: rank 0's tensor, which is of this shape and type, on every rank.
  at::Tensor from_rank_zero(const at::Tensor& own, at::IntArrayRef shape,
                            at::ScalarType dtype) const;
  /// The widths of the ranks' parts of rows that have `width` numbers.
  std::vector<int64_t> widths_of(int64_t table, int64_t width) const;
  /// On rank 0 the ranks' parts `own` of rows as whole rows, of rank r `counts[r]` rows of
  /// `widths[r]` numbers, in the order of `order` (n) int64 where ranks hold different ones;
  /// undefined on the others.
  at::Tensor put_together(int64_t table, const at::Tensor& own, const std::vector<int64_t>& counts,
                          const std::vector<int64_t>& widths, const at::Tensor& order) const;
  /// Of whole rows the columns that this rank holds.
  at::Tensor own_columns(int64_t table, const at::Tensor& rows) const;
  KeyCounts to_rank_zero(const KeyCounts& own) const;
  KeyCounts from_rank_zero(const KeyCounts& own) const;

  PackSpec spec_;
  EmbeddingPlan plan_;
  std::shared_ptr<Group> group_;
  std::vector<int64_t> feature_rows_;
  std::vector<std::unique_ptr<ShardedPack>> packs_;
  std::vector<size_t> pack_of_;  ///< of each table
  int64_t columns_ = 0;
};

}  // namespace dovetail::embedding
