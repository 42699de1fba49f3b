#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// Map from the storages that a step uses to their indices in CapturedStep. It holds weak
/// references, so that no later storage can get the address of a tracked storage.
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
  /// Indices and weak references of all tracked storages.
  using Held = std::vector<std::pair<int, c10::weak_intrusive_ptr<c10::StorageImpl>>>;
  const Held& held() const { return held_; }

 private:
  std::unordered_map<c10::StorageImpl*, int> indices_;
  Held held_;
};

/// Returns true if `tensor` is a number that ATen has wrapped as a tensor. Such a tensor counts as
/// a number, not as a tensor of the step.
bool is_number_as_tensor(const at::Tensor& tensor);

/// Returns the description of `tensor` as a view of the storage with index `storage`.
TensorUse use_of(const at::Tensor& tensor, int storage);

/// Converts an argument from the dispatcher to its recorded form. Calls `visit` for each tensor in
/// the argument; `visit` returns its TensorUse. A number wrapped as a tensor becomes a value.
CapturedArgument captured_argument(const c10::IValue& value,
                                   const std::function<TensorUse(const at::Tensor&)>& visit);

/// Resets the gradient of each parameter in `step.parameters` if the step created its storage.
void drop_gradients(const CapturedStep& step, const TrackedStorages& storages);

}  // namespace dovetail::plan
