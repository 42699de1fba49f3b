#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/embedding/ranks/learning_tables.h"

namespace dovetail::embedding {

/// Time at which the gradients of lookups update the tables.
///   kInBackward  Each gradient makes an update as soon as backward has computed it.
///   kOnApply     All gradients make one update when `apply` is called.
enum class UpdateTime { kInBackward, kOnApply };

/// Learning tables of one process, all in memory. Tables with the same optimizer are looked up and
/// updated as one pack (PackSpec).
class TrainedTables : public LearningTables {
 public:
  /// Throws UserError like PackedTables. On a GPU, all tables must have the same optimizer.
  TrainedTables(const PackSpec& spec, UpdateTime time, at::Device device = at::kCPU);

  const PackSpec& spec() const override { return spec_; }
  at::Tensor pool(const Jagged& batch) override;
  std::pair<at::Tensor, int64_t> pool_for_training(const Jagged& batch) override;
  /// Under kInBackward, updates at once: all lookups of an autograd graph must come before its
  /// backward. Under kOnApply, the gradient must not be modified until `apply`.
  void add_gradient(int64_t number, PooledGradient part) override;
  /// Makes one update from all gradients since the previous apply. Gradients are added in the order
  /// of their lookups, even if the backward passes had another order. So looking up micro-batches
  /// in order gives the bits of the whole batch. Does nothing if there are no gradients. Throws
  /// UserError under kInBackward.
  void apply();
  /// Returns the number of gradients that wait for `apply`.
  int64_t waiting() const { return static_cast<int64_t>(queue_.size()); }

  /// Return the same as PackedTables::stored and PackedTables::state. `table` is the table's number
  /// in the spec.
  at::Tensor stored(int64_t table) const;
  std::vector<std::pair<std::string, at::Tensor>> state(int64_t table) const;
  /// Sets the general learning rate. A table with its own rate keeps the ratio to the general rate.
  void set_lr(double lr);
  /// Returns the number of updates so far.
  int64_t steps() const { return packs_.empty() ? 0 : packs_.front().tables.steps(); }
  void set_steps(int64_t steps);

 private:
  struct Pack {
    /// Numbers in the spec of the pack's tables, and of its features.
    std::vector<int64_t> whole_tables, features;
    PackedTables tables;
  };
  void add_pack(const std::vector<int64_t>& tables, at::Device device);
  bool unpooled() const { return !packs_.empty() && packs_.front().tables.unpooled(); }
  /// Returns the pack of a table and the table's number in the pack.
  std::pair<const Pack*, int64_t> pack_of(int64_t table) const;
  void update(const std::vector<PooledGradient>& micro_batches);

  PackSpec spec_;
  std::vector<Pack> packs_;
  std::vector<int64_t> feature_rows_;
  const UpdateTime time_;
  int64_t lookups_ = 0;
  // Gradients that wait for `apply`, each with the number of its lookup.
  std::vector<std::pair<int64_t, PooledGradient>> queue_;
};

}  // namespace dovetail::embedding
