#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dovetail {

class GPT;
class Group;

namespace moe {
class Layer;
}

/// The biases by which routers choose (model.moe.bias_update_rate), of all layers of a model.
class RouterBias {
 public:
  explicit RouterBias(const GPT& model);

  /// After a step that was not skipped: updates each bias by the choices since the layers'
  /// `reset_load`, over all ranks, which call this together.
  void end_step(Group& group);

  /// As they stand in a checkpoint: "router.bias.<layer>", (E) float32. The live tensors; none
  /// without a rate.
  std::map<std::string, at::Tensor> tensors() const;
  static constexpr std::string_view kTensorPrefix = "router.";
  /// Copies those of `tensors` that begin with the prefix. Throws UserError for what is missing,
  /// too much or of another length.
  void load(const std::map<std::string, at::Tensor>& tensors);
  /// Rank 0's `tensors` to all ranks.
  void load(const std::map<std::string, at::Tensor>& tensors, Group& group);

 private:
  std::vector<std::pair<std::string, std::shared_ptr<moe::Layer>>> layers_;
};

}  // namespace dovetail
