#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>

namespace dovetail::jobs {

/// Cache that copies tensors of this process to one device. A copy is made at the first request and
/// kept while its original lives. So each shard that an executor computes is transferred to its
/// device only once. Nobody may write into an original.
class DeviceCopies {
 public:
  explicit DeviceCopies(c10::Device device) : device_(device) {}

  c10::Device device() const { return device_; }
  /// Returns the copy of `original` on the device, or `original` itself if it is already there.
  /// Thread-safe.
  at::Tensor of(const at::Tensor& original);

 private:
  using Key = std::tuple<const void*, int64_t, int64_t>;  ///< storage, offset, number of elements
  struct Copy {
    c10::weak_intrusive_ptr<c10::StorageImpl> original;
    at::Tensor copy;
  };

  c10::Device device_;
  std::mutex mutex_;
  std::map<Key, Copy> copies_;
};

}  // namespace dovetail::jobs
