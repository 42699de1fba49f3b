#include "dovetail/hybrid/partial.h"

#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::hybrid {

void Partial::add(const Partial& other) {
  if (tensors.empty()) {
    *this = other;
    return;
  }
  DOVETAIL_CHECK(tensors.size() == other.tensors.size(), "{} tensors and {}", tensors.size(), other.tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].add_(other.tensors[i]);
  weight += other.weight;
}

void OrderedSum::add(int64_t place, Partial partial) {
  const std::lock_guard lock(mutex_);
  DOVETAIL_CHECK(place >= next_ && !early_.contains(place), "a second partial of shard {}", place);
  early_.emplace(place, std::move(partial));
  for (auto first = early_.begin(); first != early_.end() && first->first == next_; first = early_.erase(first)) {
    sum_.add(first->second);
    ++next_;
  }
}

Partial OrderedSum::take(int64_t count) {
  const std::lock_guard lock(mutex_);
  DOVETAIL_CHECK(next_ == count && early_.empty(), "partials of {} shards in a row, not {}", next_, count);
  return std::move(sum_);
}

}  // namespace dovetail::hybrid
