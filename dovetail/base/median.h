#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace dovetail {

/// The middle of some values in their order, of an even number the upper of both: of repeated
/// times, whatever other programs did meanwhile. At least one value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace dovetail
