#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace dovetail {

/// Returns the median of `values`, at least one. For an even number of values, this is the upper of
/// the two middle values. The median of repeated timings is robust to interference from other
/// programs.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace dovetail
