#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>

namespace dovetail::jobs {

/// Cache of tensors copied to one device, usually a GPU. Copies are kept while the storage of their
/// original lives. A row is transferred to the device only once, even if jobs compute it often and
/// in different leases. The elements of an original must never change: its copy would not change
/// with them.
class DeviceCopies {
 public:
  explicit DeviceCopies(c10::Device device) : device_(device) {}

  c10::Device device() const { return device_; }
  /// Returns the copy of `original` on `device()`, or `original` itself if it is already there.
  /// Thread-safe.
  at::Tensor of(const at::Tensor& original);
  /// Returns the copy of rows [begin, begin + size) of `original`. The first call takes memory for
  /// all its rows on the device. Only rows that were asked for are transferred. Thread-safe.
  at::Tensor rows(const at::Tensor& original, int64_t begin, int64_t size);

 private:
  /// Identity of an original: address of its storage, offset in it, number of elements.
  using Key = std::tuple<const void*, int64_t, int64_t>;
  struct Copy {
    c10::weak_intrusive_ptr<c10::StorageImpl> original;
    at::Tensor copy;
    std::map<int64_t, int64_t> there = {};  ///< ranges of rows that were transferred: begin, end
  };
  Copy& copy_of(const at::Tensor& original);

  c10::Device device_;
  std::mutex mutex_;
  std::map<Key, Copy> copies_;
};

}  // namespace dovetail::jobs
