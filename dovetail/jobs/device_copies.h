#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>

namespace dovetail::jobs {

/// Copies on a device of tensors in this process' memory, each made when it is first asked for and
/// kept as long as its original lives: the shards of an executor's share are brought to it once.
/// Nobody may write into an original.
class DeviceCopies {
 public:
  explicit DeviceCopies(c10::Device device) : device_(device) {}

  c10::Device device() const { return device_; }
  /// The tensor itself where it lies on the device. Safe from several threads.
  at::Tensor of(const at::Tensor& original);

 private:
  using Key = std::tuple<const void*, int64_t, int64_t>;  ///< storage, offset, elements
  struct Copy {
    c10::weak_intrusive_ptr<c10::StorageImpl> original;
    at::Tensor copy;
  };

  c10::Device device_;
  std::mutex mutex_;
  std::map<Key, Copy> copies_;
};

}  // namespace dovetail::jobs
