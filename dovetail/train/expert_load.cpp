#include "dovetail/train/expert_load.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "dovetail/models/gpt.h"
#include "dovetail/moe/layer.h"
#include "dovetail/train/collective.h"

namespace dovetail {

ExpertLoad::ExpertLoad(const GPT& model) : layers_(moe::layers_of(model)) {}

void ExpertLoad::begin_step() {
  for (auto& [name, layer] : layers_) layer->reset_load();
}

nlohmann::ordered_json ExpertLoad::statistics(int64_t step, Group& group) const {
  std::vector<double> counts;  // of each layer: its experts', then those dropped; exact below 2^53
  for (const auto& [name, layer] : layers_) {
    counts.insert(counts.end(), layer->load().count.begin(), layer->load().count.end());
    counts.push_back(static_cast<double>(layer->load().dropped));
  }
  counts = sum_over_ranks(group, counts);
  auto lines = nlohmann::ordered_json::array();
  auto next = counts.begin();
  for (const auto& [name, layer] : layers_) {
    const auto experts = std::ssize(layer->load().count);
    const double choices = std::max(1.0, std::accumulate(next, next + experts, 0.0));
    std::vector<double> load;
    double entropy = 0;
    for (auto end = next + experts; next != end; ++next) {
      const double share = *next / choices;
      if (share > 0) entropy -= share * std::log(share) / std::log(static_cast<double>(experts));
      load.push_back(share * static_cast<double>(experts));
    }
    lines.push_back(
        {{"layer", name}, {"load", load}, {"entropy", experts == 1 ? 1 : entropy}, {"dropped", *next++ / choices}});
  }
  return {{"step", step}, {"layers", std::move(lines)}};
}

}  // namespace dovetail
