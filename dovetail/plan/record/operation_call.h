#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <functional>

#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// Calls a recorded operation with its recorded arguments, below autograd. Returns the stack of its
/// results. `storage_of(i)` must return the storage with index i in CapturedStep::storages. Tensor
/// arguments are views of these storages (TensorUse).
torch::jit::Stack call(const CapturedOperation& operation,
                       const std::function<c10::Storage(int)>& storage_of);

/// Returns a tensor with the memory of `storage` and the sizes, strides, offset and dtype of `use`.
at::Tensor tensor_of(const TensorUse& use, c10::Storage storage);

/// Calls `visit` for each defined tensor among the values of `stack`, in order. This includes
/// tensors in lists.
void for_each_tensor(const torch::jit::Stack& stack,
                     const std::function<void(const at::Tensor&)>& visit);

}  // namespace dovetail::plan
