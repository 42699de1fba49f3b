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

/// State of one training step: its ids, and the messages and gradients that belong to them.
class TableStep {
 public:
  int64_t micro_batches() const { return micro_batches_; }

 private:
  friend class DistributedTables;
  struct InPack {
    std::vector<Jagged> own;  ///< this rank's samples, one Jagged for each micro-batch
    std::vector<int64_t> receive;
    comm::Exchange::Pending ids;
    std::vector<Jagged> arrived;  ///< received ids, one Jagged for each rank; emptied by `begin`
    /// received[m][r]: micro-batch m of rank r. Its ids are local rows of this rank's tables.
    std::vector<std::vector<Jagged>> received;
    std::vector<comm::Exchange::Pending> pooled, gradients;  ///< one for each micro-batch
    /// of_ranks[r]: gradients from rank r, one for each micro-batch.
    std::vector<std::vector<PooledGradient>> of_ranks;
  };
  int64_t samples_ = 0, micro_batch_ = 1, micro_batches_ = 1;
  std::vector<InPack> packs_;
  std::vector<at::Tensor> pooled_;  ///< output of each micro-batch
};

struct TableRows {
  at::Tensor rows;  ///< (n) int64, ascending: row numbers in the table
  TableContents contents;
};

/// Embedding tables that are sharded over the ranks of a group according to a plan. Each rank looks
/// up its own samples. Every table is trained on the samples of all ranks.
///
/// A step has stages, so that communication overlaps with computation. The rows of a micro-batch
/// travel while the dense part of the previous micro-batch runs. The ids of a step travel during
/// the previous step.
///
/// ```
/// TableStep step = tables.start(batch, micro_batch, micro_batches);  // send ids to their ranks
/// tables.begin(step);      // ids have arrived, and their rows are in the fast tier
/// tables.gather(step, 0);  // each rank pools its rows, group by group, and sends them back
/// for (int64_t m = 0; m < micro_batches; ++m) {
///   const at::Tensor pooled = tables.wait(step, m);
///   if (m + 1 < micro_batches) tables.gather(step, m + 1);
///   ... forward and backward of pooled ...
///   tables.add_gradient(step, m, gradient);  // send the gradient to the ranks with the rows
/// }
/// tables.update(step);
/// ```
///
/// All ranks make the same calls in the same order, even ranks without samples. An update merges
/// the gradients of all micro-batches of all ranks in the order (rank, micro-batch). This is the
/// sample order of the whole batch if rank r has its r-th part. So the gradient sum of a row has
/// the same bits as on one rank. Rounding differs only in two places. Partial bags of row-wise
/// tables are added over ranks. Sums in the dense part are grouped by rank. With one rank, no
/// messages are sent.
class DistributedTables {
 public:
  /// All ranks call it together, with the same spec and plan. `plan.ranks` is the size of `group`,
  /// and nothing else uses `group`. With `tiers`, its `memory_bytes` and `step_rows` apply to this
  /// rank. The memory is divided among the packs in proportion to their bytes. Hashed tables
  /// (without a fixed vocabulary) get no share: they stay in memory, and `hashed` applies to them.
  /// Two bitmaps, updated rows and changed rows, are charged to `memory_bytes` with one bit a row
  /// each.
  DistributedTables(PackSpec spec, TablePlacement plan, std::shared_ptr<comm::Group> group,
                    comm::Payloads payloads = {}, const std::optional<TierOptions>& tiers = {},
                    const HashedOptions& hashed = {}, Changes changes = Changes::kUntracked);

  const PackSpec& spec() const { return spec_; }
  const TablePlacement& plan() const { return plan_; }
  int64_t columns() const { return columns_; }

  /// Starts a step: sends the ids of `batch`, which has all features. Micro-batch m is samples [m *
  /// micro_batch, (m + 1) * micro_batch), cut at the end of the batch. All ranks pass the same
  /// `micro_batch` and `micro_batches`. May be called while the previous step is still running.
  /// Throws UserError like check_jagged, on the rank that passed the invalid batch.
  TableStep start(const Jagged& batch, int64_t micro_batch, int64_t micro_batches);
  /// Lets the slow tier start to read the rows that `step` will need. Call it between `start` and
  /// `begin`, while the previous step is running.
  void prefetch(TableStep& step);
  /// Brings the step's rows in. Call it after the previous step has ended. With `training` false,
  /// the step must end without an update, and it leaves no trace. It admits no key, counts no
  /// access and does not change the fast tier.
  void begin(TableStep& step, bool training = true);
  void gather(TableStep& step, int64_t micro_batch);
  /// Returns the pooled rows, (samples, columns) float32. Features are side by side in their order.
  at::Tensor wait(TableStep& step, int64_t micro_batch);
  /// Takes the gradient of the result of `wait`, float32. It must not be modified until the step
  /// ends.
  void add_gradient(TableStep& step, int64_t micro_batch, const at::Tensor& gradient);
  /// Ends the step with one optimizer update from its gradients.
  void update(TableStep& step);
  /// Ends the step without an update.
  void discard(TableStep& step);

  /// Returns the pooled rows of a batch. Call it between steps.
  at::Tensor lookup(const Jagged& batch);

  /// Sets the general learning rate. A table with its own rate keeps the ratio to the general rate.
  void set_lr(double lr);
  /// Restores the counters of a checkpoint. `updates` counts optimizer updates. `steps` counts
  /// ended steps, including those without an update.
  void set_steps(int64_t updates, int64_t steps);

  bool is_hashed(int64_t table) const { return spec_.tables[static_cast<size_t>(table)].hashed; }
  /// Gathers the rows of [first, first + count) that are in `which` on rank 0, as copies or views.
  /// The table must have a fixed vocabulary. Returns undefined tensors on other ranks. All ranks
  /// call it together, between steps.
  TableRows read_rows(int64_t table, int64_t first, int64_t count, RowSet which) const;
  /// Inverse of read_rows: distributes rank 0's rows to every rank that holds some of them.
  void write_rows(int64_t table, const TableRows& rows);
  /// read_rows and write_rows for all rows.
  TableContents read(int64_t table) const;
  void write(int64_t table, const TableContents& contents);
  /// Counterparts of read_rows and write_rows for a hashed table. Throws UserError if `contents`
  /// has more rows than the table, or this rank's part of it, may have.
  KeyedRows read_keys(int64_t table, RowSet which = RowSet::kAll) const;
  void write_keys(int64_t table, const KeyedRows& contents);

  /// Returns the number of rows in a RowSet, on every rank. All ranks call it together.
  int64_t num_rows(int64_t table, RowSet which) const;
  /// Empties RowSet::kChanged. Call it after a checkpoint has saved the changed rows.
  void forget_changes();

  comm::Group::Traffic traffic() const { return group_->all_to_all_traffic(); }
  /// Returns this rank's counters, summed over the packs; nullopt without tiers.
  std::optional<TierCounters> tier_counters() const;
  /// Returns the counters of this rank's hashed tables; nullopt if no table counts.
  /// Replicated tables count on rank 0 only.
  std::optional<HashedCounters> hashed_counters() const;

 private:
  void receive(TableStep& step);
  void gather_group(TableStep& step, int64_t micro_batch, int64_t group);
  void end(TableStep& step);
  ShardedPack& pack_of(int64_t table) { return *packs_[pack_of_[static_cast<size_t>(table)]]; }
  const ShardedPack& pack_of(int64_t table) const {
    return *packs_[pack_of_[static_cast<size_t>(table)]];
  }
  /// Local row numbers, (n) int64 ascending, that this rank sends to rank 0. They are its part of
  /// rows [first, first + count).
  at::Tensor rows_sent(int64_t table, int64_t first, int64_t count, RowSet which) const;
  /// Returns `own` of each rank on rank 0, zeros on the other ranks.
  std::vector<int64_t> counts_of_ranks(int64_t own) const;
  /// Concatenates the ranks' tensors `own` (n, ...) in rank order. `counts` is counts_of_ranks(n).
  /// Returns the result on rank 0, an undefined tensor on the others.
  at::Tensor to_rank_zero(const at::Tensor& own, const std::vector<int64_t>& counts) const;
  /// Returns the rows n of rank 0's tensor (n, ...), 0 if it is undefined. Ignores the tensors of
  /// other ranks.
  int64_t rows_of_rank_zero(const at::Tensor& own) const;
  /// Inverse of to_rank_zero: broadcasts rank 0's tensor, which must have this shape and dtype.
  at::Tensor from_rank_zero(const at::Tensor& own, at::IntArrayRef shape,
                            at::ScalarType dtype) const;
  /// Width of each rank's part of rows that have `width` numbers.
  std::vector<int64_t> widths_of(int64_t table, int64_t width) const;
  /// Assembles whole rows on rank 0 from the ranks' parts `own`. Rank r contributes `counts[r]`
  /// rows of `widths[r]` numbers. `order` (n) int64 permutes the rows if ranks hold different rows.
  /// Returns an undefined tensor on other ranks.
  at::Tensor put_together(int64_t table, const at::Tensor& own, const std::vector<int64_t>& counts,
                          const std::vector<int64_t>& widths, const at::Tensor& order) const;
  /// Returns this rank's columns of whole rows.
  at::Tensor own_columns(int64_t table, const at::Tensor& rows) const;
  KeyCounts to_rank_zero(const KeyCounts& own) const;
  KeyCounts from_rank_zero(const KeyCounts& own) const;

  PackSpec spec_;
  TablePlacement plan_;
  std::shared_ptr<comm::Group> group_;
  std::vector<int64_t> feature_rows_;
  std::vector<std::unique_ptr<ShardedPack>> packs_;
  std::vector<size_t> pack_of_;  ///< pack index of each table
  int64_t columns_ = 0;
};

}  // namespace dovetail::embedding
