#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "dovetail/base/side_stream.h"
#include "dovetail/comm/exchange.h"
#include "dovetail/comm/group.h"
#include "dovetail/embedding/ranks/sharded_pack.h"
#include "dovetail/embedding/ranks/table_placement.h"

namespace dovetail::embedding {

/// State of one training step of DistributedTables: the step's ids, and the messages and gradients
/// for them.
class TableStep {
 public:
  /// Returns the number of micro-batches.
  int64_t micro_batches() const { return micro_batches_; }

 private:
  friend class DistributedTables;
  /// State of one pack (PlacedPack in table_placement.h).
  struct InPack {
    /// This rank's samples, one Jagged for each micro-batch. With Transfer::kRows, ids are numbers
    /// of rows in `rows`, and `place` moves them to the device of the rows.
    std::vector<Jagged> own;
    std::vector<int64_t> receive;  ///< number of words (of ids) that each rank sends to this rank
    comm::Exchange::Pending ids;   ///< exchange of ids, until they have arrived
    /// Received ids, one Jagged for each rank, on the CPU. After `begin` they are row numbers on
    /// this rank.
    std::vector<Jagged> arrived;
    /// received[m][r]: micro-batch m of rank r in `arrived`, on ShardedPack::ids_device. Set by
    /// `place`.
    std::vector<std::vector<Jagged>> received;
    bool placed = false;  ///< true after `place`
    /// Exchanges of pooled rows and of gradients, one of each for each micro-batch. Nullopt: no
    /// gradient has been sent.
    std::vector<comm::Exchange::Pending> pooled;
    std::vector<std::optional<comm::Exchange::Pending>> gradients;
    /// of_ranks[r]: gradients from rank r, one for each micro-batch.
    std::vector<std::vector<PooledGradient>> of_ranks;
    /// With Transfer::kRows, these replace `arrived`, `received` and `of_ranks`. Rows are exchanged
    /// in the first micro-batch, gradients in the last.
    RowTransfer::Step rows;
    std::vector<RowTransfer::Received> ids_of_ranks;
    std::vector<at::Tensor>
        ids_of_tables;  ///< result of RowTransfer::ids_of_tables; set by `place`
    std::vector<PooledGradient> own_gradients;

    /// Returns the received ids, one Jagged for each rank, with either transfer.
    std::vector<Jagged> ids_here() const {
      std::vector<Jagged> found = arrived;
      for (const RowTransfer::Received& from : ids_of_ranks) found.push_back(from.ids);
      return found;
    }
  };
  // samples_: this rank's samples in the step. micro_batch_: samples of one micro-batch.
  int64_t samples_ = 0, micro_batch_ = 1, micro_batches_ = 1;
  std::vector<InPack> packs_;
  std::vector<at::Tensor> pooled_;  ///< pooled rows of this rank's samples, by micro-batch
};

/// Some rows of a table.
struct TableRows {
  at::Tensor rows;         ///< (n) int64, ascending: row numbers in the whole table
  TableContents contents;  ///< the n rows and their state
};

/// Embedding tables of a model, distributed over the ranks (processes) of a group. The plan
/// (TablePlacement) tells which rows each rank holds. Each rank looks up its own samples of the
/// batch. A bag is the ids of one feature in one sample. A lookup gives a pooled row for each bag:
/// the sum or mean of the bag's rows. The dense part of the model, which has no tables, computes
/// with the pooled rows. Every table is trained on the samples of all ranks.
///
/// A step has stages, so that communication overlaps with computation. The pooled rows of a
/// micro-batch are sent while the dense part of the model computes the previous micro-batch. The
/// ids of a step are sent during the previous step.
///
/// ```
/// TableStep step = tables.start(batch, micro_batch, micro_batches);  // send ids to their ranks
/// tables.begin(step);      // wait for ids from all ranks; bring their rows into memory
/// tables.gather(step, 0);  // pool this rank's rows for all ranks, and send them back
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
/// the gradients of all micro-batches of all ranks in the order (rank, micro-batch). If rank r has
/// the r-th part of the whole batch, this is the batch's sample order. So the gradient sum of a row
/// has the same bits as on one rank. Compared with one rank, rounding differs in only three places:
/// - in row-wise tables with Transfer::kBags, where a pooled row is the sum of one partial sum per
///   rank,
/// - in tables with Transfer::kRows, where a row's gradient is the sum of one sum per rank,
/// - in the dense part of the model, where sums over samples are grouped by rank.
///
/// In tables with Transfer::kRows, all rows of a step arrive before its first micro-batch. Their
/// gradients leave after the last one.
///
/// With one rank, no messages are sent.
class DistributedTables {
 public:
  /// All ranks call it together, with the same spec and plan. `plan.ranks` must be the size of
  /// `group`, and nothing else may use `group`. `payloads` are the number formats in which pooled
  /// rows and gradients are sent.
  ///
  /// `tiers`, if set, keeps only some rows in memory. Its `memory_bytes` and `step_rows` are limits
  /// for this rank. Each table gets what it needs at least, keys of hashed tables included
  /// (memory_left). The rest is divided among the packs in proportion to their bytes on this rank.
  /// For tables with a fixed vocabulary on the CPU, `memory_bytes` includes a bitmap of the updated
  /// rows, with one bit for each row. If changes are tracked, it includes such a bitmap of the
  /// changed rows, too.
  ///
  /// `hashed` applies to hashed tables (without a fixed vocabulary).
  ///
  /// Rows, pooled rows, gradients and their messages lie in `memory`. Ids, their messages and sizes
  /// of messages lie on the CPU. So do keys of hashed tables, and maps, counts and the slow tier of
  /// `tiers`. Between GPUs with NCCL, ids travel from GPU to GPU.
  DistributedTables(PackSpec spec, TablePlacement plan, std::shared_ptr<comm::Group> group,
                    comm::Payloads payloads = {}, const std::optional<TierOptions>& tiers = {},
                    const HashedOptions& hashed = {}, Changes changes = Changes::kUntracked,
                    SlotMemory memory = {});

  const PackSpec& spec() const { return spec_; }
  const TablePlacement& plan() const { return plan_; }
  int64_t rank() const { return group_->rank(); }
  /// Returns the number of columns of pooled rows: the sum of the features' dims.
  int64_t columns() const { return columns_; }
  /// Returns the device of the rows.
  at::Device device() const { return memory_.device; }

  /// Starts a step: sends the ids of `batch` to the ranks that hold their rows. `batch` has this
  /// rank's samples, with all features. Micro-batch m has samples [m * micro_batch, (m + 1) *
  /// micro_batch), cut at the end of the batch. All ranks pass the same `micro_batch` and
  /// `micro_batches`. The previous step may still be running. Throws UserError like check_jagged,
  /// on the rank that passed the invalid batch.
  TableStep start(const Jagged& batch, int64_t micro_batch, int64_t micro_batches);
  /// Prepares `step` while the previous one is running; call it between `start` and `begin`. Waits
  /// for the step's ids. Brings those that are row numbers already to the device of the rows, on a
  /// stream beside the current one. Starts to read from the slow tier the rows that `step` will
  /// need.
  void prefetch(TableStep& step);
  /// Waits for the step's ids, and brings their rows on this rank into the fast tier. Call it after
  /// the previous step has ended. With `training` false, the step must end without an update
  /// (`discard`). Such a step leaves no trace: no key is admitted, no access is counted, and the
  /// fast tier does not change.
  void begin(TableStep& step, bool training = true);
  /// Pools this rank's rows for micro-batch `micro_batch` of every rank. Then starts to send the
  /// pooled rows to the ranks that have the samples. The groups of packs (PlacedPack) are pooled
  /// and sent one after the other.
  void gather(TableStep& step, int64_t micro_batch);
  /// Returns the pooled rows of this rank's samples, (samples, columns) float32. Features are side
  /// by side in their order.
  at::Tensor wait(TableStep& step, int64_t micro_batch);
  /// Takes the loss's gradient with respect to the result of `wait`, float32, and sends it to the
  /// ranks with the rows. `gradient` must not be modified until the step ends.
  void add_gradient(TableStep& step, int64_t micro_batch, const at::Tensor& gradient);
  /// Ends the step with one optimizer update from the gradients of all ranks.
  void update(TableStep& step);
  /// Ends the step without an update. Its micro-batches may have had no gradient, the same ones on
  /// all ranks.
  void discard(TableStep& step);

  /// Looks up a batch of this rank's own samples and returns their pooled rows. The lookup leaves
  /// no trace, like a step without `training`. All ranks call it together, between steps.
  at::Tensor lookup(const Jagged& batch);

  /// Sets the general learning rate. A table with its own rate keeps the ratio to the general rate.
  void set_lr(double lr);
  /// Restores two counters from a checkpoint. `updates` counts optimizer updates. `steps` counts
  /// ended steps, including those without an update.
  void set_steps(int64_t updates, int64_t steps);

  bool is_hashed(int64_t table) const { return spec_.tables[static_cast<size_t>(table)].hashed; }
  /// Returns true if each rank has other rows of the table.
  bool cut_by_rows(int64_t table) const;
  /// Returns true if each rank has other columns of the table.
  bool cut_by_columns(int64_t table) const;
  /// Returns the rank that saves a table which is not cut by rows. It holds the whole table, or
  /// some columns of a table that is cut by columns.
  int64_t saving_rank(int64_t table) const;
  /// Collects rows of a table from all ranks on rank `to`: the rows of [first, first + count) that
  /// are in `which`. Returns them on that rank, as copies or views, and undefined tensors on other
  /// ranks. The table must have a fixed vocabulary. All ranks call it together, between steps.
  TableRows read_rows(int64_t table, int64_t first, int64_t count, RowSet which,
                      int64_t to = 0) const;
  /// Returns the rows of [first, first + count) in `which` that this rank holds. It sends nothing.
  /// The table must have a fixed vocabulary and must not be cut by columns. Call it between steps.
  TableRows own_rows(int64_t table, int64_t first, int64_t count, RowSet which) const;
  /// Returns the number of all rows in `which` that this rank holds. It sends nothing. Replicas of
  /// a row and columns of a row count on each rank.
  int64_t num_own_rows(int64_t table, RowSet which) const;
  /// Inverse of read_rows: distributes rank 0's rows to every rank that holds some of them. All
  /// ranks call it together, between steps.
  void write_rows(int64_t table, const TableRows& rows);
  /// Calls read_rows for all rows of a table.
  TableContents read(int64_t table) const;
  /// Calls write_rows for all rows of a table.
  void write(int64_t table, const TableContents& contents);
  /// Returns the keys of a hashed table on rank 0, without rows (HashedTables::keys). All ranks
  /// call it together, between steps.
  KeyedRows list_keys(int64_t table, RowSet which) const;
  /// Returns the keys of a hashed table that this rank holds, without rows. It sends nothing. Call
  /// it between steps.
  KeyedRows own_keys(int64_t table, RowSet which) const;
  /// Returns the rows of `keys`, (n) int64, which this rank holds. It sends nothing.
  TableContents own_rows(int64_t table, const at::Tensor& keys) const;
  /// Reads the rows of `keys` of a hashed table, (n) int64 on rank 0, in blocks of `block` keys.
  /// Calls body(first, rows) on rank 0 for the keys from `first` on, at least once. All ranks call
  /// it together, between steps.
  void read_rows(int64_t table, const at::Tensor& keys, int64_t block,
                 const std::function<void(int64_t first, const TableContents& rows)>& body) const;
  /// Returns keys and rows of a hashed table on rank 0. All ranks call it together, between steps.
  KeyedRows read_keys(int64_t table, RowSet which = RowSet::kAll) const;
  /// Adds rank 0's keys on the ranks that hold them (HashedTables::add). All ranks call it
  /// together, between steps. Throws UserError if the table, or this rank's part of it, may not
  /// have so many rows.
  void add_keys(int64_t table, const KeyedRows& contents);
  /// Removes rank 0's keys in the same way (HashedTables::remove).
  void remove_keys(int64_t table, const KeyedRows& removed);
  /// Removes all keys of a hashed table.
  void clear_keys(int64_t table);
  /// Replaces the contents of a hashed table by rank 0's `contents`. All ranks call it together,
  /// between steps.
  void write_keys(int64_t table, const KeyedRows& contents);

  /// Returns the number of the whole table's rows that are in `which`, the same on every rank. All
  /// ranks call it together.
  int64_t num_rows(int64_t table, RowSet which) const;
  /// Empties RowSet::kChanged of all tables. Call it after a checkpoint has saved the changed rows.
  void forget_changes();

  /// Returns the cost of this rank's all-to-alls: calls, bytes and seconds waited.
  comm::Group::Traffic traffic() const { return group_->all_to_all_traffic(); }
  /// Returns this rank's counters of the tiers, summed over the packs; nullopt without tiers.
  std::optional<TierCounters> tier_counters() const;
  /// Returns the transfers of rows between this rank's GPU and the host, summed over the packs.
  SlotTransfers row_transfers() const;
  /// Returns the counters of this rank's hashed tables. Replicated tables are counted on rank 0
  /// only. Returns nullopt if no hashed table is counted on this rank.
  std::optional<HashedCounters> hashed_counters() const;

 private:
  void receive(TableStep& step);
  /// Starts to send words of ids. `receive` are the numbers of words that come.
  comm::Exchange::Pending send_ids(const Message& message,
                                   const std::vector<int64_t>& receive) const;
  /// Waits for words of ids, and returns them on the CPU.
  at::Tensor words_of(comm::Exchange::Pending& ids) const;
  /// Cuts the ids of a pack into micro-batches, and brings them to the device that takes them.
  void place(TableStep& step, size_t pack) const;
  /// Lends ids that `prefetch` has placed to the current stream.
  void lend_ids(const TableStep::InPack& in) const;
  /// Reads the rows of all micro-batches for all ranks, and starts to send them.
  void gather_single_rows(TableStep::InPack& in, const ShardedPack& pack) const;
  void gather_group(TableStep& step, int64_t micro_batch, int64_t group);
  void end(TableStep& step);
  ShardedPack& pack_of(int64_t table) { return *packs_[pack_of_[static_cast<size_t>(table)]]; }
  const ShardedPack& pack_of(int64_t table) const {
    return *packs_[pack_of_[static_cast<size_t>(table)]];
  }
  /// Returns the rows of [first, first + count) in `which` that this rank holds. They are row
  /// numbers on this rank, (n) int64 ascending.
  at::Tensor local_rows(int64_t table, int64_t first, int64_t count, RowSet which) const;
  /// Returns the numbers in the whole table of rows on this rank.
  at::Tensor whole_numbers(int64_t table, const at::Tensor& local) const;
  /// Returns, on rank `to`, the number `own` of each rank; zeros on the other ranks.
  std::vector<int64_t> counts_of_ranks(int64_t own, int64_t to = 0) const;
  /// Returns, on rank `to`, the ranks' tensors `own` (n, ...), concatenated in rank order; an
  /// undefined tensor on the other ranks. `counts` is counts_of_ranks(n, to).
  at::Tensor to_rank(int64_t to, const at::Tensor& own, const std::vector<int64_t>& counts) const;
  /// Returns, on every rank, the number of rows of rank 0's tensor `own`; 0 if it is undefined.
  /// Ignores the tensors of other ranks.
  int64_t rows_of_rank_zero(const at::Tensor& own) const;
  /// Sends rank 0's tensor `own` to all ranks and returns it on every rank. On rank 0, `own` must
  /// have this shape and dtype. Ignores the tensors of other ranks.
  at::Tensor from_rank_zero(const at::Tensor& own, at::IntArrayRef shape,
                            at::ScalarType dtype) const;
  /// Returns how many of a row's `width` numbers (elements or state) each rank holds.
  std::vector<int64_t> widths_of(int64_t table, int64_t width) const;
  /// Returns, on rank `to`, whole rows that are assembled from the ranks' parts `own`; an undefined
  /// tensor on other ranks. Rank r contributes `counts[r]` rows of `widths[r]` numbers. If `order`
  /// (n) int64 is defined, row i of the result is row order[i] of the ranks' rows in rank order.
  /// Row-wise tables need `order`, since each rank has other rows of them.
  at::Tensor put_together(int64_t table, const at::Tensor& own, const std::vector<int64_t>& counts,
                          const std::vector<int64_t>& widths, const at::Tensor& order,
                          int64_t to) const;
  /// Returns the columns of `rows` that this rank holds: all of them, unless the table is
  /// column-wise. Each row of `rows` is a whole stored row, or the whole state of a row.
  at::Tensor own_columns(int64_t table, const at::Tensor& rows) const;
  /// Returns true if this rank sends its keys of a hashed table to rank 0.
  bool sends_keys(int64_t table) const;
  KeyCounts to_rank_zero(const KeyCounts& own) const;
  KeyCounts from_rank_zero(const KeyCounts& own) const;

  PackSpec spec_;
  TablePlacement plan_;
  std::shared_ptr<comm::Group> group_;
  std::vector<int64_t> feature_rows_;
  std::vector<std::unique_ptr<ShardedPack>> packs_;
  std::vector<size_t> pack_of_;  ///< pack index of each table
  int64_t columns_ = 0;
  SlotMemory memory_;
  SideStream beside_;  ///< copies of a later step's ids
  bool ids_by_gpu_;    ///< true if ids travel from GPU to GPU
};

}  // namespace dovetail::embedding
