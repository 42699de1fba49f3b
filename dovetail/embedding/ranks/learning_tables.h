#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "dovetail/embedding/pack/lookup.h"
#include "dovetail/embedding/pack/table.h"

namespace dovetail::embedding {

/// Tables that learn from the backward pass of their lookups. Autograd computes gradients only for
/// pooled rows, the results of lookups. From these, the tables compute the gradients of their rows,
/// which are never stored.
class LearningTables {
 public:
  virtual ~LearningTables() = default;
  virtual const PackSpec& spec() const = 0;
  /// Looks up a batch, as embedding::pool (lookup.h) does with all features. Leaves no trace.
  virtual at::Tensor pool(const Jagged& batch) = 0;
  /// Looks up a batch that add_gradient will follow. Returns the pooled rows and the number of the
  /// lookup.
  virtual std::pair<at::Tensor, int64_t> pool_for_training(const Jagged& batch) = 0;
  /// Takes the gradient of the pooled rows of lookup `number`, together with its batch. The tables
  /// decide when they update. Throws UserError if they no longer wait for this gradient.
  virtual void add_gradient(int64_t number, PooledGradient part) = 0;
};

/// Owner of tables in a Python program. Operators get the handle of the tables, a number. A graph
/// of torch.compile holds a number as a constant, but cannot hold tables.
class OwnedTables : public torch::CustomClassHolder {
 public:
  explicit OwnedTables(std::shared_ptr<LearningTables> tables);
  ~OwnedTables() override;
  OwnedTables(const OwnedTables&) = delete;
  OwnedTables& operator=(const OwnedTables&) = delete;

  int64_t handle() const { return handle_; }

 private:
  std::shared_ptr<LearningTables> tables_;
  int64_t handle_;
};

/// Returns the tables with this handle. Throws UserError if there are none in this process, or if
/// their owner is gone.
std::shared_ptr<LearningTables> tables_of(int64_t handle);

}  // namespace dovetail::embedding
