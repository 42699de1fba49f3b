#pragma once

#include <algorithm>
#include <vector>

/// Functions on short unsorted lists of tensor or node indices, searched from front to back.
namespace dovetail::plan {

inline bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

inline void add_once(std::vector<int>& list, int value) {
  if (!contains(list, value)) list.push_back(value);
}

}  // namespace dovetail::plan
