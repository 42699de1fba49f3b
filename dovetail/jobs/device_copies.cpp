#include "dovetail/jobs/device_copies.h"

namespace dovetail::jobs {

at::Tensor DeviceCopies::of(const at::Tensor& original) {
  if (original.device() == device_) return original;
  const std::lock_guard lock(mutex_);
  const Key key(original.storage().unsafeGetStorageImpl(), original.storage_offset(),
                original.numel());
  if (const auto found = copies_.find(key);
      found != copies_.end() && !found->second.original.expired())
    return found->second.copy;
  std::erase_if(copies_, [](const auto& entry) { return entry.second.original.expired(); });
  at::Tensor copy = original.to(device_);
  copies_.insert_or_assign(key, Copy{original.storage().getWeakStorageImpl(), copy});
  return copy;
}

}  // namespace dovetail::jobs
