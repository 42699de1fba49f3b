#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dovetail {

class GPT;

namespace moe {
class Layer;
}

/// How the tokens of a step spread over the experts of a model, on this rank.
class ExpertLoad {
 public:
  explicit ExpertLoad(const GPT& model);

  bool empty() const { return layers_.empty(); }
  /// Before a step's first forward pass.
  void begin_step();
  /// What was routed since, a line of experts.jsonl: {"step", "layers": [{"layer", "load": [share of the choices that
  /// each expert got, times the number of experts: 1 is even], "dropped": share of the choices}]}.
  nlohmann::ordered_json statistics(int64_t step) const;

 private:
  std::vector<std::pair<std::string, moe::Layer*>> layers_;
};

}  // namespace dovetail
