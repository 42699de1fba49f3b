#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dovetail::moe {
class Layer;
}  // namespace dovetail::moe

namespace dovetail::models {
class GPT;
}  // namespace dovetail::models

namespace dovetail::comm {
class Group;
}  // namespace dovetail::comm

namespace dovetail::train {

/// Biases of all routers of a model, one number per expert. A router adds them to its scores when
/// it chooses experts. Each step lowers the biases of experts with more than the mean load and
/// raises those with less. The change is model.moe.bias_update_rate.
class RouterBias {
 public:
  explicit RouterBias(const models::GPT& model);

  /// Updates each bias by the load of its expert since the layer's `reset_load`, summed over all
  /// ranks. Call it after a step that was not skipped, on all ranks together.
  void end_step(comm::Group& group);

  /// Returns the biases of each layer by their names in a checkpoint: "router.bias.<layer>", (E)
  /// float32 for E experts. These are the live tensors. The map is empty without
  /// model.moe.bias_update_rate.
  std::map<std::string, at::Tensor> tensors() const;
  /// Prefix of the names in `tensors()`.
  static constexpr std::string_view kTensorPrefix = "router.";
  /// Restores the biases from the entries of `tensors` whose names begin with kTensorPrefix. Throws
  /// UserError if one is missing, unknown or has another length.
  void load(const std::map<std::string, at::Tensor>& tensors);
  /// Restores the biases of all ranks from rank 0's `tensors`.
  void load(const std::map<std::string, at::Tensor>& tensors, comm::Group& group);

 private:
  std::vector<std::pair<std::string, std::shared_ptr<moe::Layer>>> layers_;
};

}  // namespace dovetail::train
