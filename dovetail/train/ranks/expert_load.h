#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <vector>

#include "dovetail/moe/layer.h"

namespace dovetail::models {
class GPT;
}  // namespace dovetail::models

namespace dovetail::comm {
class Group;
}  // namespace dovetail::comm

namespace dovetail::train {

/// Routing of a layer's tokens since its `reset_load`, summed over all ranks. A choice is one
/// expert that the router chose for one token. Numbers are exact below 2^53.
struct LayerChoices {
  std::vector<double> count;  ///< number of choices of each expert, including dropped ones
  double dropped = 0;         ///< number of choices that were dropped for lack of capacity
};
/// Returns the choices of each layer, in the order of `layers`. All ranks call it together.
std::vector<LayerChoices> sum_loads(const moe::Layers& layers, comm::Group& group);

/// Statistics of how the tokens of a step spread over a model's experts.
class ExpertLoad {
 public:
  explicit ExpertLoad(const models::GPT& model);

  /// Returns true if the model has no experts.
  bool empty() const { return layers_.empty(); }
  /// Resets the counts of all layers. Call it before a step's first forward pass.
  void begin_step();
  /// Returns a line of experts.jsonl about the routing since `begin_step`. All ranks call it
  /// together.
  ///
  /// {"step", "layers": [{"layer", "load", "entropy", "dropped"}]}. "load": each expert's share of
  /// the choices times the number of experts E; 1 is balanced. "entropy": entropy of the shares /
  /// log E. "dropped": share of the choices that were dropped.
  nlohmann::ordered_json statistics(int64_t step, comm::Group& group) const;

 private:
  moe::Layers layers_;
};

}  // namespace dovetail::train
