#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// Indices of the storages that a step uses. It holds them weakly, so that no later storage has the
/// address of one.
class TrackedStorages {
 public:
  /// -1 if it is not one.
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

/// True for a number that ATen has wrapped as a tensor, which is no tensor of a step.
bool is_number_as_tensor(const at::Tensor& tensor);

TensorUse use_of(const at::Tensor& tensor, int storage);

/// An argument as the dispatcher passes it, `visit` giving the use of each tensor in it. A wrapped
/// number is a value.
CapturedArgument captured_argument(const c10::IValue& value,
                                   const std::function<TensorUse(const at::Tensor&)>& visit);

/// Resets each gradient of `step.parameters` that lies in a storage that the step has made.
void drop_gradients(const CapturedStep& step, const TrackedStorages& storages);

}  // namespace dovetail::plan
