#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dovetail/comm/exchange.h"
#include "dovetail/comm/group.h"
#include "dovetail/embedding/plan.h"
#include "dovetail/embedding/sharded_pack.h"

namespace dovetail::embedding {

/// A micro-batch on its way through the tables.
class Lookup {
 public:
  int64_t samples() const { return samples_; }

 private:
  friend class DistributedTables;
  struct InPack {
    Jagged own;
    std::vector<int64_t> receive;
    Exchange::Pending ids;
    std::vector<Jagged> received;
    Exchange::Pending pooled;
  };
  int64_t samples_ = 0;
  std::vector<InPack> packs_;
  at::Tensor y_;
};

/// All of a table: rows (rows, dim) and state (rows, state_per_row) float32.
struct TableContents {
  at::Tensor weight, state;
};

/// Tables over the ranks of a group, as a plan says: each rank looks up its own samples and trains on those of all.
///
/// The rows of a micro-batch go through stages, so that the next one's can run beside the dense part of this one:
///
///     Lookup next = tables.start(first);                 // ids to the ranks that hold their rows
///     tables.gather(next);                               // rows pooled there, group by group, and sent back
///     for (each micro-batch) {
///       Lookup now = std::move(next);
///       next = tables.start(following);
///       const at::Tensor pooled = tables.wait(now);
///       tables.gather(next);                             // what it sends arrives while the dense part runs
///       ... forward and backward of pooled ...
///       tables.add_gradient(std::move(now), gradient);   // sent to where the rows are
///     }
///     tables.update();
///
/// All ranks make the same calls in the same order, also with no samples of their own. An update merges the gradients
/// of all micro-batches of all ranks in the order (rank, micro-batch): the order of the samples of the whole batch,
/// where rank r has the r-th part of it. So the rows' sums have the bits of one rank's; what differs is what the pooled
/// rows of row-wise bags (added over ranks) and the dense part's sums round. Of one rank there are no messages.
class DistributedTables {
 public:
  /// All ranks together, with the same spec and plan; plan.ranks is the group's size. `group` is used by these tables
  /// alone.
  DistributedTables(PackSpec spec, EmbeddingPlan plan, std::shared_ptr<Group> group, Payloads payloads = {});

  const PackSpec& spec() const { return spec_; }
  const EmbeddingPlan& plan() const { return plan_; }
  int64_t columns() const { return columns_; }

  /// `batch` has all features. Throws UserError as check_jagged, on the rank whose batch it is.
  Lookup start(const Jagged& batch);
  void gather(Lookup& lookup);
  /// (samples, columns) float32: the features side by side in their order.
  at::Tensor wait(Lookup& lookup);
  /// All three stages.
  at::Tensor lookup(const Jagged& batch);

  /// The gradient of what `wait` gave, float32; it must stay as it is until `update`.
  void add_gradient(Lookup lookup, const at::Tensor& gradient);
  /// One step of the optimizer with all gradients since the last.
  void update();
  /// Forgets them instead.
  void discard();

  void set_lr(double lr);
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps);

  /// Table `table` put together on rank 0, a copy or a view; undefined tensors on the others. All ranks together.
  TableContents read(int64_t table) const;
  /// The inverse: rank 0's contents to every rank that holds some of it.
  void write(int64_t table, const TableContents& contents);

  Group::Traffic traffic() const { return group_->all_to_all_traffic(); }

 private:
  struct PendingGradient {
    size_t pack;
    std::vector<Jagged> received;
    Exchange::Pending elements;
  };

  void gather_group(Lookup& lookup, int64_t group);
  void collect();
  ShardedPack& pack_of(int64_t table) { return packs_[pack_of_[static_cast<size_t>(table)]]; }
  const ShardedPack& pack_of(int64_t table) const { return packs_[pack_of_[static_cast<size_t>(table)]]; }
  /// On rank 0 a table's rows of `width` numbers, from what every rank holds of them; `own` is this rank's, undefined
  /// if it has none.
  at::Tensor read_rows(int64_t table, const at::Tensor& own, int64_t width) const;
  /// What this rank holds of them.
  at::Tensor own_rows(int64_t table, const at::Tensor& whole) const;

  PackSpec spec_;
  EmbeddingPlan plan_;
  std::shared_ptr<Group> group_;
  std::vector<int64_t> feature_rows_;
  std::vector<ShardedPack> packs_;
  std::vector<size_t> pack_of_;  ///< of each table
  int64_t columns_ = 0, steps_ = 0;
  std::vector<PendingGradient> pending_;
  std::vector<std::vector<std::vector<PooledGradient>>> parts_;  ///< of each pack and rank, its micro-batches
};

}  // namespace dovetail::embedding
