#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/comm/buckets.h"
#include "dovetail/comm/gradient_reducer.h"
#include "dovetail/comm/group.h"
#include "dovetail/ops/adamw.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Ranks over which an Optimizer's state is sharded, and the bucket size, both as in the
/// GradientReducer. Without a group, or with a group of one, the state is not sharded.
struct OptimizerSharding {
  std::shared_ptr<comm::Group> group;
  int64_t bucket_bytes = 0;
};

/// AdamW over the parameters of a module. Keeps master weights if the module computes in 16 bits.
///
///     Optimizer optimizer(model, config);             // module in float32, initialised
///     model.set_compute_dtype(at::kBFloat16);         // masters keep the float32 values
///     optimizer.bind(model);
///
/// Masters and moments are float32 (float64 for float64 parameters). A float32 parameter is its own
/// master.
///
/// With sharding a rank has masters and moments only for its share of each bucket (ZeRO-1,
/// Rajbhandari et al. 2020). `update` changes the weights of that share, then gathers the others.
/// All ranks call `update`, `tensors` and `scatter` together.
class Optimizer {
 public:
  Optimizer(const torch::nn::Module& model, const OptimizerSection& config,
            OptimizerSharding sharding = {});

  /// Call after the module got its compute dtype. Takes over its new parameters and makes the
  /// moments, all zero.
  void bind(const torch::nn::Module& model);

  /// Parameters in the order of the module, the same order as gradients.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  /// Sets learning rate and gradient scale of the next update, and counts it. nullopt: `update`
  /// changes nothing.
  struct Numbers {
    double lr = 0, grad_scale = 1;
  };
  void set_update(std::optional<Numbers> numbers);
  /// Updates masters and the module's weights, with gradient(i) * grad_scale for parameter i. A
  /// recorded step takes the numbers of the last `set_update` before it runs.
  void update(const comm::GradientReducer& gradients);
  /// Number of updates so far, without skipped steps: t of Adam's bias correction.
  int64_t updates() const { return updates_; }

  bool sharded() const { return sharding_.group != nullptr; }

  /// Named state that an update reads and writes, without gradients and the module's weights. With
  /// sharding only this rank's.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

  /// Returns "model.<name>" (masters), "optimizer.m.<name>" and "optimizer.v.<name>": the live
  /// tensors, no copies. With sharding rank 0 gets whole tensors, gathered one by one on the CPU,
  /// and the other ranks nothing.
  std::map<std::string, at::Tensor> tensors() const;
  /// Copies values into the state and the module's weights. If `tensors` has no moments (imported
  /// weights), they stay zero. Throws UserError naming a tensor that is missing, surplus or of
  /// another shape. Not for sharded state.
  void load(const std::map<std::string, at::Tensor>& tensors, int64_t updates);
  /// Restores sharded state from rank 0's whole tensors. Errors of rank 0 end all ranks.
  void scatter(const std::map<std::string, at::Tensor>& tensors, int64_t updates);

 private:
  /// Elements of one parameter that this rank updates: all of them, or with sharding a piece.
  struct Part {
    comm::Bucket::Piece piece;
    size_t bucket = 0;   ///< with sharding: bucket that has the gradient,
    int64_t offset = 0;  ///< and the gradient's offset in this rank's share
    at::Tensor weights;  ///< view of the module's weights
    at::Tensor master = {}, m = {}, v = {};

    bool has_master() const { return weights.scalar_type() != master.scalar_type(); }
  };

  void make_parts();
  /// Throws UserError as `load` does.
  void check(const std::map<std::string, at::Tensor>& tensors) const;
  /// Indices of parts, grouped into lists that are updated in one operation each.
  std::vector<std::vector<size_t>> updated_together() const;
  void update_some(const std::vector<size_t>& which, const comm::GradientReducer& gradients);

  /// Gathers the weights of all shares on every rank.
  void gather_weights();
  /// Weights of a rank's share, as byte views of the module's weights.
  std::vector<at::Tensor> bytes_of_share(const comm::Bucket& bucket, int rank) const;
  /// Numbers of elements of a parameter that each rank updates.
  std::vector<int64_t> sizes_on_ranks(size_t parameter) const;
  /// This rank's part of a parameter, or null.
  const Part* part_of(size_t parameter) const;
  /// Gathers a part's tensor `which`. Returns the whole tensor on rank 0's CPU.
  at::Tensor gathered(size_t parameter, at::Tensor Part::* which) const;

  OptimizerSection config_;
  OptimizerSharding sharding_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> initial_;    ///< float32 values of the parameters, only until `bind`
  std::vector<comm::Bucket> buckets_;  ///< only with sharding
  std::vector<Part> parts_;

  int64_t updates_ = 0;
  std::optional<ops::AdamWOptions> now_;
};

}  // namespace dovetail::train
