#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/comm/reducer.h"
#include "dovetail/ops/adamw.h"
#include "dovetail/train/config.h"

namespace dovetail {

/// AdamW over the parameters of a module, with master weights where the module computes in 16 bits.
///
///     Optimizer optimizer(model, config);             // module in float32, initialised
///     model.set_compute_dtype(at::kBFloat16);         // masters keep the float32 values
///     optimizer.bind(model);
///
/// Masters and moments are float32 (float64 for float64 parameters). A parameter that is float32 itself is its own
/// master.
class Optimizer {
 public:
  Optimizer(const torch::nn::Module& model, const OptimizerSection& config);

  /// After the module got its compute dtype: takes up its parameters again, makes the moments (zero).
  void bind(const torch::nn::Module& model);

  /// The parameters that gradients belong to, in the order of the module.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  /// The numbers of the update that follows; counts it. Nothing: there is none, `update` leaves all as it is.
  struct Numbers {
    double lr = 0, grad_scale = 1;
  };
  void set_update(std::optional<Numbers> numbers);
  /// One update with gradient(i) * grad_scale for parameter i, written to masters and to the module's own weights. In a
  /// recorded step the numbers are those of the last `set_update` before it runs.
  void update(const GradientReducer& gradients);
  /// Updates made so far (skipped steps do not count), t of the bias correction.
  int64_t updates() const { return updates_; }

  /// What an update reads and writes beside gradients and the module's own weights, by name.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

  /// "model.<name>" (masters), "optimizer.m.<name>", "optimizer.v.<name>": the live tensors, not copies.
  std::map<std::string, at::Tensor> tensors() const;
  /// Copies values in; also into the module's weights. A set without any moments (imported weights) leaves them zero.
  /// UserError naming a tensor that is missing, surplus, or of another shape.
  void load(const std::map<std::string, at::Tensor>& tensors, int64_t updates);

 private:
  OptimizerSection config_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_, masters_, m_, v_;
  /// Parameters whose updates are one operation, each in one of these.
  std::vector<std::vector<size_t>> updated_together() const;
  void update_some(const std::vector<size_t>& which, const GradientReducer& gradients);

  int64_t updates_ = 0;
  std::optional<AdamWOptions> now_;
};

}  // namespace dovetail
