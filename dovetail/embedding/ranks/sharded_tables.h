#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dovetail/embedding/ranks/distributed.h"
#include "dovetail/embedding/ranks/learning_tables.h"

namespace dovetail::embedding {

/// Rule that combines the gradients of n ranks. kMean divides their sum by n, as PyTorch's
/// DistributedDataParallel does.
enum class RankGradients { kMean, kSum };

/// Learning tables over the ranks of a group (DistributedTables). All ranks make the same calls in
/// the same order. A lookup for training begins a step, and its gradient ends it with an update.
/// There is one step at a time: the next lookup ends a step that had no gradient, without an
/// update. A gradient that comes later is a UserError.
class ShardedTables : public LearningTables {
 public:
  /// Arguments of DistributedTables. `description` says in lines of text what they are made from.
  struct Options {
    PlacementOptions placement = {};
    comm::Payloads payloads = {};
    std::optional<TierOptions> tiers = {};
    HashedOptions hashed = {};
    RankGradients gradients = RankGradients::kMean;
    std::string description;
  };
  /// Throws UserError on all ranks if the ranks' descriptions differ. The error has the first line
  /// that differs.
  ShardedTables(const PackSpec& spec, Options options, const std::shared_ptr<comm::Group>& group);

  const PackSpec& spec() const override { return tables_->spec(); }
  at::Tensor pool(const Jagged& batch) override;
  std::pair<at::Tensor, int64_t> pool_for_training(const Jagged& batch) override;
  void add_gradient(int64_t number, PooledGradient part) override;

  const DistributedTables& tables() const { return *tables_; }
  comm::Group& group() const { return *group_; }
  void set_lr(double lr) { tables_->set_lr(lr); }
  /// Returns the number of updates, and the number of ended steps.
  std::pair<int64_t, int64_t> steps() const { return {updates_, steps_}; }
  void set_steps(int64_t updates, int64_t steps);

  /// Tensors of a table by name. "weight" has the stored rows, and named_state names the state. A
  /// hashed table also has the members of KeyCounts: "keys", "occurrences" and "last_step". Its
  /// candidates have the same members with the prefix "candidate_".
  using Contents = std::map<std::string, at::Tensor>;
  /// Returns tensors without memory, with the names, dtypes and shapes of a table's contents. For a
  /// hashed table, they have 0 rows.
  Contents shapes(int64_t table) const;
  /// Returns a copy of a table on rank 0, and nothing on other ranks. All ranks call it together,
  /// and it ends the step.
  Contents read(int64_t table);
  /// Sets a table to rank 0's `contents`. All ranks call it together, and it ends the step.
  void write(int64_t table, const Contents& contents);

 private:
  /// Ends a step that had no gradient.
  void end_step();

  std::shared_ptr<comm::Group> group_;
  std::optional<DistributedTables> tables_;
  std::optional<TableStep> step_;
  double scale_ = 1;
  int64_t lookups_ = 0, updates_ = 0, steps_ = 0;
};

}  // namespace dovetail::embedding
