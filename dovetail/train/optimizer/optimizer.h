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

namespace dovetail {

/// Ranks that share out the state of an Optimizer, and the size of buckets, as for the
/// GradientReducer. No group, or a group of one: the state is whole.
struct OptimizerSharding {
  std::shared_ptr<Group> group;
  int64_t bucket_bytes = 0;
};

/// AdamW over the parameters of a module, with master weights where the module computes in 16 bits.
///
///     Optimizer optimizer(model, config);             // module in float32, initialised
///     model.set_compute_dtype(at::kBFloat16);         // masters keep the float32 values
///     optimizer.bind(model);
///
/// Masters and moments are float32 (float64 for float64 parameters). A parameter that is float32
/// itself is its own master.
///
/// With a sharding a rank has masters and moments of its share of each bucket alone (ZeRO-1,
/// Rajbhandari et al. 2020). `update` changes the weights of that share and gathers the others. All
/// ranks call `update`, `tensors` and `scatter` together.
class Optimizer {
 public:
  Optimizer(const torch::nn::Module& model, const OptimizerSection& config,
            OptimizerSharding sharding = {});

  /// After the module got its compute dtype: takes up its parameters again, makes the moments
  /// (zero).
  void bind(const torch::nn::Module& model);

  /// The parameters that gradients belong to, in the order of the module.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  /// The numbers of the update that follows; counts it. Nothing: there is none, `update` leaves all
  /// as it is.
  struct Numbers {
    double lr = 0, grad_scale = 1;
  };
  void set_update(std::optional<Numbers> numbers);
  /// One update with gradient(i) * grad_scale for parameter i, written to masters and to the
  /// module's own weights. In a recorded step the numbers are those of the last `set_update` before
  /// it runs.
  void update(const GradientReducer& gradients);
  /// Updates made so far (skipped steps do not count), t of the bias correction.
  int64_t updates() const { return updates_; }

  bool sharded() const { return sharding_.group != nullptr; }

  /// State that an update reads and writes beside gradients and the module's own weights, by name.
  /// Sharded: this rank's.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

  /// "model.<name>" (masters), "optimizer.m.<name>", "optimizer.v.<name>": the live tensors, not
  /// copies. Sharded: rank 0 gets whole tensors, gathered one by one onto the CPU, and the others
  /// nothing.
  std::map<std::string, at::Tensor> tensors() const;
  /// Copies values in; also into the module's weights. A set without any moments (imported weights)
  /// leaves them zero. UserError naming a tensor that is missing, surplus, or of another shape. For
  /// state that is whole.
  void load(const std::map<std::string, at::Tensor>& tensors, int64_t updates);
  /// The same for sharded state, from rank 0's whole tensors; errors of rank 0 end all ranks.
  void scatter(const std::map<std::string, at::Tensor>& tensors, int64_t updates);

 private:
  /// Elements of one parameter that this rank updates: all of them, or where sharded a piece.
  struct Part {
    Bucket::Piece piece;
    size_t bucket = 0;   ///< where sharded: the gradient is in this bucket's share,
    int64_t offset = 0;  ///< from this element on
    at::Tensor weights;  ///< the module's own, a view
    at::Tensor master = {}, m = {}, v = {};

    bool has_master() const { return weights.scalar_type() != master.scalar_type(); }
  };

  void make_parts();
  /// Throws the UserErrors of `load`.
  void check(const std::map<std::string, at::Tensor>& tensors) const;
  /// Parts whose updates are one operation, each in one of these.
  std::vector<std::vector<size_t>> updated_together() const;
  void update_some(const std::vector<size_t>& which, const GradientReducer& gradients);

  /// The weights of all shares to every rank.
  void gather_weights();
  /// Weights of a rank's share, as bytes: views of the module's.
  std::vector<at::Tensor> bytes_of_share(const Bucket& bucket, int rank) const;
  /// Elements of a parameter that each rank updates.
  std::vector<int64_t> sizes_on_ranks(size_t parameter) const;
  /// This rank's part of it, or null.
  const Part* part_of(size_t parameter) const;
  /// On rank 0 the whole tensor, on its CPU.
  at::Tensor gathered(size_t parameter, at::Tensor Part::* which) const;

  OptimizerSection config_;
  OptimizerSharding sharding_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> initial_;  ///< float32 values, until `bind`
  std::vector<Bucket> buckets_;      ///< where sharded
  std::vector<Part> parts_;

  int64_t updates_ = 0;
  std::optional<AdamWOptions> now_;
};

}  // namespace dovetail
