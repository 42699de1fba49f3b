#include "dovetail/train/ranks/expert_load.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "dovetail/comm/collective.h"
#include "dovetail/models/gpt.h"
#include "dovetail/moe/layer.h"

namespace dovetail::train {

ExpertLoad::ExpertLoad(const models::GPT& model) : layers_(moe::layers_of(model)) {}

void ExpertLoad::begin_step() {
  for (auto& [name, layer] : layers_) layer->reset_load();
}

std::vector<LayerChoices> sum_loads(const moe::Layers& layers, comm::Group& group) {
  std::vector<double> counts;  // counts of each layer's experts, then its dropped choices
  for (const auto& [name, layer] : layers) {
    const moe::Layer::Load load = layer->load();
    counts.insert(counts.end(), load.count.begin(), load.count.end());
    counts.push_back(static_cast<double>(load.dropped));
  }
  counts = sum_over_ranks(group, counts);
  std::vector<LayerChoices> loads;
  auto next = counts.begin();
  for (const auto& [name, layer] : layers) {
    const auto end = next + layer->experts();
    loads.push_back({.count = {next, end}, .dropped = *end});
    next = end + 1;
  }
  return loads;
}

nlohmann::ordered_json ExpertLoad::statistics(int64_t step, comm::Group& group) const {
  auto lines = nlohmann::ordered_json::array();
  auto layer = layers_.begin();
  for (const LayerChoices& load : sum_loads(layers_, group)) {
    const auto experts = static_cast<double>(load.count.size());
    const double choices =
        std::max(1.0, std::accumulate(load.count.begin(), load.count.end(), 0.0));
    std::vector<double> relative;
    double entropy = 0;
    for (const double count : load.count) {
      const double share = count / choices;
      if (share > 0) entropy -= share * std::log(share) / std::log(experts);
      relative.push_back(share * experts);
    }
    lines.push_back({{"layer", (layer++)->first},
                     {"load", relative},
                     {"entropy", experts == 1 ? 1 : entropy},
                     {"dropped", load.dropped / choices}});
  }
  return {{"step", step}, {"layers", std::move(lines)}};
}

}  // namespace dovetail::train
