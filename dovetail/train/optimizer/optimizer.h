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
#include "dovetail/io/tensor_owners.h"
#include "dovetail/ops/adamw.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Ranks over which an Optimizer's state is sharded, and the bucket size in bytes of gradients.
/// Both must be the same as in the GradientReducer. Without a group, or with a group of one rank,
/// the state is not sharded.
struct OptimizerSharding {
  std::shared_ptr<comm::Group> group;
  int64_t bucket_bytes = 0;
};

/// AdamW over the parameters of a module. If the module computes in 16 bits, the optimizer keeps a
/// float32 copy of each such parameter (master) and updates that copy.
///
///     Optimizer optimizer(model, config);             // module in float32, initialised
///     model.set_compute_dtype(at::kBFloat16);         // masters keep the float32 values
///     optimizer.bind(model);
///
/// Masters and moments are float32 (float64 for float64 parameters). A float32 parameter is its own
/// master.
///
/// With sharding (ZeRO-1, Rajbhandari et al. 2020), parameters form buckets (comm/buckets.h). The
/// gradients of a bucket are reduced together. Each bucket is cut into one share per rank. A rank
/// has masters and moments only for its share of each bucket. `update` changes the weights of that
/// share, then gathers the weights of the other shares. All ranks call `update`, `gathered` and
/// `scatter` together.
class Optimizer {
 public:
  /// Takes the initial float32 values of the parameters. Call `bind` before the first update.
  Optimizer(const torch::nn::Module& model, const OptimizerSection& config,
            OptimizerSharding sharding = {});

  /// Takes over the module's parameters and makes masters and moments; moments are zero. Call it
  /// once the module has its compute dtype.
  void bind(const torch::nn::Module& model);

  /// Returns the parameters in the order of the module. Gradients have the same order.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  /// Numbers of one update. Gradients are multiplied by `grad_scale`.
  struct Numbers {
    double lr = 0, grad_scale = 1;
  };
  /// Sets the numbers of the next `update`, and adds 1 to `updates()`. With nullopt, the next
  /// `update` changes nothing, and `updates()` stays the same.
  void set_update(std::optional<Numbers> numbers);
  /// Updates masters and the module's weights, with gradient gradients.gradient(i) * grad_scale for
  /// parameter i. Uses the numbers of the last `set_update`, also if a memory plan replays this
  /// call as recorded.
  void update(const comm::GradientReducer& gradients);
  /// Returns the number of updates so far, without skipped steps: t of Adam's bias correction.
  int64_t updates() const { return updates_; }
  /// Declares that some parameters began later than the others, with zero moments: after this many
  /// updates, by name. Their t counts from there. Call it after `bind`.
  void set_beginnings(const std::map<std::string, int64_t>& updates_before);

  bool sharded() const { return sharding_.group != nullptr; }

  /// Returns all tensors that an update reads and writes, with names, except gradients and the
  /// module's weights. With sharding the result has only this rank's part.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

  /// Returns the tensors that a checkpoint stores: "model.<name>" (masters), "optimizer.m.<name>"
  /// and "optimizer.v.<name>" (moments). These are the live tensors, no copies. Not for sharded
  /// state.
  std::map<std::string, at::Tensor> tensors() const;
  /// Returns the names of these tensors, their bytes and the ranks that hold them. For sharded
  /// state.
  std::vector<io::CheckpointTensor> sharded_tensors() const;
  /// Makes each of these tensors whole on its owner, one bucket at a time. Returns on each rank the
  /// tensors that it owns, on the CPU. For sharded state.
  std::map<std::string, at::Tensor> gathered(const io::TensorOwners& owners) const;
  /// Copies `tensors`, named as in `tensors()`, into the state and the module's weights. `updates`
  /// becomes the number of updates so far. If there are no moments (imported weights), they stay
  /// zero. Throws UserError naming a tensor that is missing, unknown or of another shape. Not for
  /// sharded state.
  void load(const std::map<std::string, at::Tensor>& tensors, int64_t updates);
  /// Does the same as `load`, but for sharded state. Rank 0 passes whole tensors. Errors of rank 0
  /// are thrown on all ranks.
  void scatter(const std::map<std::string, at::Tensor>& tensors, int64_t updates);

 private:
  /// Elements of one parameter that this rank updates: all of them, or with sharding a contiguous
  /// piece.
  struct Part {
    comm::Bucket::Piece piece;
    size_t bucket = 0;  ///< with sharding: index of the bucket with the gradient
    /// With sharding: begin of the gradient in this rank's share of the bucket, in elements.
    int64_t offset = 0;
    at::Tensor weights;  ///< view of the module's weights
    /// Master (the same tensor as `weights` if they are float32), first and second moment.
    at::Tensor master = {}, m = {}, v = {};

    bool has_master() const { return weights.scalar_type() != master.scalar_type(); }
  };

  void make_parts();
  /// Throws UserError as `load` does.
  void check(const std::map<std::string, at::Tensor>& tensors) const;
  /// Returns the indices of all parts, divided into lists. One operation updates all parts of one
  /// list.
  std::vector<std::vector<size_t>> updated_together() const;
  void update_some(const std::vector<size_t>& which, const comm::GradientReducer& gradients);

  /// Gathers the weights of all shares on every rank.
  void gather_weights();
  /// Returns the weights in the share of a bucket that `rank` updates, as byte views of the
  /// module's weights.
  std::vector<at::Tensor> bytes_of_share(const comm::Bucket& bucket, int rank) const;
  /// Returns true if masters of this parameter are tensors of their own.
  bool has_master(size_t parameter) const {
    const at::ScalarType dtype = parameters_[parameter].scalar_type();
    return dtype != comm::sum_dtype(dtype);
  }
  /// Returns the number of elements of a parameter that each rank updates.
  std::vector<int64_t> sizes_on_ranks(size_t parameter) const;
  /// Returns this rank's part of a parameter, or null if it has none.
  const Part* part_of(size_t parameter) const;
  /// Gathers the tensor `which` (master, m or v) of each parameter of `bucket` at the owner of the
  /// tensor "<prefix><name>". Adds the tensors of this rank to `whole`.
  void gather(const comm::Bucket& bucket, at::Tensor Part::* which, const std::string& prefix,
              const io::TensorOwners& owners, std::map<std::string, at::Tensor>& whole) const;

  OptimizerSection config_;
  OptimizerSharding sharding_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<int64_t> updates_before_;  ///< for each parameter (set_beginnings); mostly 0
  std::vector<at::Tensor> initial_;      ///< float32 values of the parameters, only until `bind`
  std::vector<comm::Bucket> buckets_;    ///< only with sharding
  std::vector<Part> parts_;

  int64_t updates_ = 0;
  /// Numbers of the next update; nullopt if that update is to change nothing.
  std::optional<ops::AdamWOptions> now_;
};

}  // namespace dovetail::train
