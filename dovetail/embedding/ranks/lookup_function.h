#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/embedding/pack/lookup.h"
#include "dovetail/embedding/pack/table.h"

namespace dovetail::embedding {

/// When the gradients of lookups become an update: as soon as each of them is there, or all of them
/// together at `apply`.
enum class UpdateTime { kInBackward, kOnApply };

/// Tables that learn from the backward of their lookups, without a gradient of their rows ever
/// being stored. Those of one optimizer are looked up and updated as one.
class TrainedTables : public torch::CustomClassHolder {
 public:
  /// Throws UserError as PackedTables, which may have one optimizer on a GPU.
  TrainedTables(const PackSpec& spec, UpdateTime time, at::Device device = at::kCPU);

  const PackSpec& spec() const { return spec_; }
  /// As PackedTables of all features would.
  at::Tensor pool(const Jagged& batch) const;
  /// One update of all gradients since the last, in the order of their lookups (not of their
  /// backwards): lookups of the micro-batches of a batch, in order, give the bits of the whole
  /// batch. Without any, nothing happens. Throws UserError under kInBackward.
  void apply();
  /// Gradients that wait for `apply`.
  int64_t waiting() const { return static_cast<int64_t>(queue_.size()); }

  at::Tensor stored(int64_t table) const;
  std::vector<std::pair<std::string, at::Tensor>> state(int64_t table) const;
  /// The general rate; a table with a rate of its own keeps its ratio to that.
  void set_lr(double lr);
  int64_t steps() const { return packs_.empty() ? 0 : packs_.front().tables.steps(); }
  void set_steps(int64_t steps);

 private:
  friend class LookupFunction;
  friend at::Tensor lookup(const c10::intrusive_ptr<TrainedTables>& tables, const Jagged& batch);

  struct Pack {
    std::vector<int64_t> whole_tables, features;  ///< by their numbers in the spec
    PackedTables tables;
  };
  void add_pack(const std::vector<int64_t>& tables, at::Device device);
  bool unpooled() const { return !packs_.empty() && packs_.front().tables.unpooled(); }
  /// The pack of a table and its number there.
  std::pair<const Pack*, int64_t> pack_of(int64_t table) const;
  void update(const std::vector<PooledGradient>& micro_batches);

  PackSpec spec_;
  std::vector<Pack> packs_;
  std::vector<int64_t> feature_rows_;
  const UpdateTime time_;
  at::Tensor
      anchor_;  // what makes autograd call the backward: the rows themselves have no gradient
  int64_t lookups_ = 0;
  std::vector<std::pair<int64_t, PooledGradient>> queue_;
};

/// `pool`, whose backward hands the gradient of its output to the tables. Under kInBackward each
/// backward is a step of the optimizer, and every lookup of a graph must have been made before. The
/// gradient must stay as it is until `apply`. Throws UserError for weights that require a gradient:
/// they get none.
at::Tensor lookup(const c10::intrusive_ptr<TrainedTables>& tables, const Jagged& batch);

}  // namespace dovetail::embedding
