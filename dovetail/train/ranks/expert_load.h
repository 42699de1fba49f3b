#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dovetail {

class GPT;
class Group;

namespace moe {
class Layer;
}

using MoeLayers = std::vector<std::pair<std::string, std::shared_ptr<moe::Layer>>>;

/// What a layer routed since its `reset_load`, over all ranks; exact below 2^53.
struct LayerChoices {
  std::vector<double> count;  ///< choices of each expert, before dropping
  double dropped = 0;
};
/// Of each layer. All ranks together.
std::vector<LayerChoices> sum_loads(const MoeLayers& layers, Group& group);

/// How the tokens of a step spread over the experts of a model.
class ExpertLoad {
 public:
  explicit ExpertLoad(const GPT& model);

  bool empty() const { return layers_.empty(); }
  /// Before a step's first forward pass.
  void begin_step();
  /// What was routed since, on all ranks, which call this together: a line of experts.jsonl:
  /// {"step", "layers":
  /// [{"layer", "load": [share of the choices that each expert got, times the number of experts: 1
  /// is even], "entropy": of these shares, over log E, "dropped": share of the choices}]}.
  nlohmann::ordered_json statistics(int64_t step, Group& group) const;

 private:
  MoeLayers layers_;
};

}  // namespace dovetail
