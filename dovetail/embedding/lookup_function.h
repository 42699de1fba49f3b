#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "dovetail/embedding/lookup.h"
#include "dovetail/embedding/table.h"

namespace dovetail::embedding {

/// When the gradients of lookups become an update: as soon as each of them is there, or all of them together at
/// `apply`.
enum class UpdateTime { kInBackward, kOnApply };

/// Tables that learn from the backward of their lookups, without a gradient of their rows ever being stored.
class TrainedTables : public torch::CustomClassHolder {
 public:
  TrainedTables(PackSpec spec, UpdateTime time, at::Device device = at::kCPU);

  PackedTables& tables() { return tables_; }
  /// One update of all gradients since the last, in the order of their lookups (not of their backwards): lookups of the
  /// micro-batches of a batch, in order, give the bits of the whole batch. Without any, nothing happens. Throws
  /// UserError under kInBackward.
  void apply();

 private:
  friend class LookupFunction;
  friend at::Tensor lookup(const c10::intrusive_ptr<TrainedTables>& tables, const Jagged& batch);

  PackedTables tables_;
  const UpdateTime time_;
  at::Tensor anchor_;  // what makes autograd call the backward: the rows themselves have no gradient
  int64_t lookups_ = 0;
  std::vector<std::pair<int64_t, PooledGradient>> queue_;
};

/// `pool`, whose backward hands the gradient of its output to the tables. Under kInBackward each backward is a step of
/// the optimizer, and every lookup of a graph must have been made before. The gradient must stay as it is until
/// `apply`. Throws UserError for weights that require a gradient: they get none.
at::Tensor lookup(const c10::intrusive_ptr<TrainedTables>& tables, const Jagged& batch);

}  // namespace dovetail::embedding
