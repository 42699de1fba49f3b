#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// Indices of the storages that a step uses. The references are weak and prevent that a later
/// storage gets the address of a tracked one.
class TrackedStorages {
 public:
  /// Returns the index of the tensor's storage, or -1 if it is not tracked.
  int find(const at::Tensor& tensor) const {
    if (!tensor.has_storage()) return -1;
    const auto found = indices_.find(tensor.storage().unsafeGetStorageImpl());
    return found == indices_.end() ? -1 : found->second;
  }
  void add(const at::Tensor& tensor, int index) {
    indices_[tensor.storage().unsafeGetStorageImpl()] = index;
    held_.emplace_back(index, tensor.storage().getWeakStorageImpl());
  }
  using Held = std::vector<std::pair<int, c10::weak_intrusive_ptr<c10::StorageImpl>>>;
  const Held& held() const { return held_; }

 private:
  std::unordered_map<c10::StorageImpl*, int> indices_;
  Held held_;
};

/// Returns true for a number that ATen has wrapped as a tensor. It is not a tensor of the step.
bool is_number_as_tensor(const at::Tensor& tensor);

TensorUse use_of(const at::Tensor& tensor, int storage);

/// Converts an argument as the dispatcher passes it. `visit` returns the use of each tensor in the
/// argument. A wrapped number is a value.
CapturedArgument captured_argument(const c10::IValue& value,
                                   const std::function<TensorUse(const at::Tensor&)>& visit);

/// Resets each gradient of `step.parameters` whose storage the step has created.
void drop_gradients(const CapturedStep& step, const TrackedStorages& storages);

}  // namespace dovetail::plan
