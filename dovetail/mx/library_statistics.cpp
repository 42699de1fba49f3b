#include "dovetail/mx/library_statistics.h"

#include <ATen/ATen.h>

#include <array>
#include <utility>

namespace dovetail::mx {

void LibraryStatistics::add(std::string_view layer, const LinearStatistics& statistics) {
  const std::lock_guard<std::mutex> lock(mutex_);
  LinearStatistics& sums = layers_.try_emplace(std::string(layer)).first->second;
  // The weight is quantized again in each call. Forward counts it, backward leaves it empty.
  if (statistics.weight.elements > 0) sums.weight = statistics.weight;
  sums.activation.add(statistics.activation);
  sums.gradient.add(statistics.gradient);
}

std::tuple<std::vector<std::string>, at::Tensor> LibraryStatistics::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> names;
  std::vector<double> values;
  for (const auto& [layer, statistics] : layers_) {
    names.push_back(layer);
    for (const Operand operand : kOperands) {
      const Statistics& s = statistics.of(operand);
      const auto number = [](auto count) { return static_cast<double>(count); };
      const std::array<double, 12> fields = {number(s.elements),
                                             number(s.blocks),
                                             number(s.zero_blocks),
                                             number(s.non_finite_blocks),
                                             number(s.underflows),
                                             number(s.saturations),
                                             number(s.saturating_blocks),
                                             number(s.amax()),
                                             number(s.min_scale),
                                             number(s.max_scale),
                                             s.signal,
                                             s.error};
      values.insert(values.end(), fields.begin(), fields.end());
    }
  }
  layers_.clear();
  const auto layers = static_cast<int64_t>(names.size());
  return {std::move(names), at::tensor(values, at::kDouble).view({layers, 3, 12})};
}

LibraryStatistics& library_statistics() {
  static LibraryStatistics statistics;
  return statistics;
}

}  // namespace dovetail::mx
