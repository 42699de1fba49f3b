#include "dovetail/train/expert_load.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dovetail/models/block.h"
#include "dovetail/models/gpt.h"

namespace dovetail {

ExpertLoad::ExpertLoad(const GPT& model) {
  for (size_t i = 0; i < model.blocks().size(); ++i) {
    moe::Layer* layer = model.blocks()[i]->experts();
    if (layer != nullptr) layers_.emplace_back(fmt::format("blocks.{}.moe", i), layer);
  }
}

void ExpertLoad::begin_step() {
  for (auto& [name, layer] : layers_) layer->reset_load();
}

nlohmann::ordered_json ExpertLoad::statistics(int64_t step) const {
  auto lines = nlohmann::ordered_json::array();
  for (const auto& [name, layer] : layers_) {
    const moe::Layer::Load& load = layer->load();
    const auto choices = static_cast<double>(std::max<int64_t>(load.choices(), 1));
    const auto experts = static_cast<double>(load.count.size());
    std::vector<double> shares;
    for (const int64_t count : load.count) shares.push_back(static_cast<double>(count) * experts / choices);
    lines.push_back({{"layer", name}, {"load", shares}, {"dropped", static_cast<double>(load.dropped) / choices}});
  }
  return {{"step", step}, {"layers", std::move(lines)}};
}

}  // namespace dovetail
