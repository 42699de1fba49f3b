#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <functional>

#include "dovetail/plan/record/captured_step.h"

namespace dovetail::plan {

/// Calls an operation below autograd and returns its results. `storage_of` maps the storage indices
/// of its arguments to storages.
torch::jit::Stack call(const CapturedOperation& operation,
                       const std::function<c10::Storage(int)>& storage_of);

/// Returns the view of `storage` that `use` describes.
at::Tensor tensor_of(const TensorUse& use, c10::Storage storage);

/// Calls `visit` for each defined tensor among the values of `stack`, in order.
void for_each_tensor(const torch::jit::Stack& stack,
                     const std::function<void(const at::Tensor&)>& visit);

}  // namespace dovetail::plan
