#include "dovetail/jobs/device_copies.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <iterator>

namespace dovetail::jobs {

DeviceCopies::Copy& DeviceCopies::copy_of(const at::Tensor& original) {
  const Key key(original.storage().unsafeGetStorageImpl(), original.storage_offset(),
                original.numel());
  if (const auto found = copies_.find(key);
      found != copies_.end() && !found->second.original.expired())
    return found->second;
  std::erase_if(copies_, [](const auto& entry) { return entry.second.original.expired(); });
  Copy copy{original.storage().getWeakStorageImpl(),
            at::empty_like(original, original.options().device(device_))};
  return copies_.insert_or_assign(key, std::move(copy)).first->second;
}

at::Tensor DeviceCopies::of(const at::Tensor& original) {
  const at::Tensor all = original.dim() == 0 ? original.view({1}) : original;
  return rows(all, 0, all.size(0)).view(original.sizes());
}

at::Tensor DeviceCopies::rows(const at::Tensor& original, int64_t begin, int64_t size) {
  if (original.device() == device_) return original.narrow(0, begin, size);
  const std::lock_guard lock(mutex_);
  Copy& copy = copy_of(original);
  const auto transfer = [&](int64_t from, int64_t to) {
    if (from < to) copy.copy.narrow(0, from, to - from).copy_(original.narrow(0, from, to - from));
  };
  // Transfers the gaps between ranges that are there, and joins all of them into one range.
  int64_t first = begin, last = begin + size, next = begin;
  auto range = copy.there.upper_bound(begin);
  if (range != copy.there.begin() && std::prev(range)->second >= begin) --range;
  while (range != copy.there.end() && range->first <= begin + size) {
    transfer(next, range->first);
    next = std::max(next, range->second);
    first = std::min(first, range->first);
    last = std::max(last, range->second);
    range = copy.there.erase(range);
  }
  transfer(next, begin + size);
  copy.there.emplace(first, last);
  return copy.copy.narrow(0, begin, size);
}

}  // namespace dovetail::jobs
